package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	descriptors "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/ratelimit/policy"
)

const (
	ok   = rls.RateLimitResponse_OK
	over = rls.RateLimitResponse_OVER_LIMIT
)

// envoy returns a client for Envoy's protocol.
func envoy(t *testing.T, s *running) rls.RateLimitServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(s.rpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return rls.NewRateLimitServiceClient(conn)
}

// entries returns a descriptor. Keys and values alternate in pairs.
func entries(pairs ...string) *descriptors.RateLimitDescriptor {
	d := new(descriptors.RateLimitDescriptor)
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &descriptors.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

func request(of ...*descriptors.RateLimitDescriptor) *rls.RateLimitRequest {
	return &rls.RateLimitRequest{Domain: "web", Descriptors: of}
}

const envoyRules = `rules:
- {name: pair, match: {attributes: {domain: web}}, key: [user, path], limit: fixed-window 3/h, optional: true}
- {name: address, match: {attributes: {domain: web}}, key: ip, limit: fixed-window 10/m, optional: true}
- {name: generic, key: generic_key, limit: fixed-window 4/m, optional: true}
- {name: bucket, key: bucket, limit: token-bucket 1/s burst 5, optional: true}
- {name: queue, key: queue, limit: leaky-bucket 1/h queue 5, optional: true}
- {name: never, match: {attributes: {user: [mallory]}}, limit: blocked}
- {name: needed, match: {attributes: {kind: [needed]}}, key: tenant, limit: fixed-window 3/m}
`

func TestEnvoyIsAnswered(t *testing.T) {
	s := start(t, config{})
	s.edit(t, envoyRules)
	c := envoy(t, s)
	call := func(r *rls.RateLimitRequest) *rls.RateLimitResponse {
		t.Helper()
		resp, err := c.ShouldRateLimit(t.Context(), r)
		require.NoError(t, err)
		require.Len(t, resp.Statuses, len(r.Descriptors))
		return resp
	}
	require.Eventually(t, func() bool { return call(request(entries("user", "mallory"))).OverallCode == over }, 20*time.Second, 10*time.Millisecond)

	t.Run("descriptors that nest", func(t *testing.T) {
		for left := range 3 {
			resp := call(request(entries("user", "ann", "path", "/a?q=1")))
			assert.Equal(t, ok, resp.OverallCode)
			assert.EqualValues(t, 2-left, resp.Statuses[0].LimitRemaining)
			assert.Equal(t, "pair", resp.Statuses[0].CurrentLimit.Name)
			assert.EqualValues(t, 3, resp.Statuses[0].CurrentLimit.RequestsPerUnit)
			assert.Equal(t, rls.RateLimitResponse_RateLimit_HOUR, resp.Statuses[0].CurrentLimit.Unit)
		}
		resp := call(request(entries("user", "ann", "path", "/a?q=2")))
		assert.Equal(t, over, resp.OverallCode)
		assert.Equal(t, over, resp.Statuses[0].Code)
		assert.InDelta(t, 3600, resp.Statuses[0].DurationUntilReset.AsDuration().Seconds(), 60)
		require.Len(t, resp.ResponseHeadersToAdd, 1)
		assert.Equal(t, "Retry-After", resp.ResponseHeadersToAdd[0].Key)
		assert.Regexp(t, `^3[56]\d\d$`, resp.ResponseHeadersToAdd[0].Value)
		assert.Equal(t, ok, call(request(entries("user", "ann", "path", "/b"))).OverallCode)
		assert.Equal(t, ok, call(request(entries("user", "bob", "path", "/a"))).OverallCode)
	})
	t.Run("a rule that matches two descriptors is charged once", func(t *testing.T) {
		resp := call(request(entries("remote_address", "192.0.2.1"), entries("remote_address", "192.0.2.1", "user", "carl")))
		for _, s := range resp.Statuses {
			assert.EqualValues(t, 9, s.LimitRemaining)
		}
	})
	t.Run("hits_addend", func(t *testing.T) {
		r := request(entries("remote_address", "192.0.2.2"))
		r.HitsAddend = 4
		assert.EqualValues(t, 6, call(r).Statuses[0].LimitRemaining)
		r.Descriptors[0].HitsAddend = wrapperspb.UInt64(5)
		assert.EqualValues(t, 1, call(r).Statuses[0].LimitRemaining, "its own counts")
		r.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
		assert.EqualValues(t, 1, call(r).Statuses[0].LimitRemaining, "a look")
		r.Descriptors[0].HitsAddend = wrapperspb.UInt64(2)
		assert.Equal(t, over, call(r).OverallCode)
		r.Descriptors[0].HitsAddend = wrapperspb.UInt64(1 << 60)
		assert.Equal(t, over, call(r).OverallCode, "more than there ever is")
		r.Descriptors[0].IsNegativeHits = true
		_, err := c.ShouldRateLimit(t.Context(), r)
		assert.Equal(t, codes.Unimplemented, status.Code(err))
	})
	t.Run("descriptors that disagree are decided apart, all or none", func(t *testing.T) {
		resp := call(request(entries("generic_key", "one"), entries("generic_key", "two")))
		assert.Equal(t, ok, resp.OverallCode)
		for range 3 {
			call(request(entries("generic_key", "two")))
		}
		resp = call(request(entries("generic_key", "one"), entries("generic_key", "two")))
		assert.Equal(t, over, resp.OverallCode)
		assert.Equal(t, []rls.RateLimitResponse_Code{ok, over}, []rls.RateLimitResponse_Code{resp.Statuses[0].Code, resp.Statuses[1].Code})
		assert.EqualValues(t, 2, call(request(entries("generic_key", "one"))).Statuses[0].LimitRemaining, "given back")
	})
	t.Run("IPv6 addresses of one /64", func(t *testing.T) {
		call(request(entries("remote_address", "2001:db8::1")))
		assert.EqualValues(t, 8, call(request(entries("remote_address", "2001:db8::2"))).Statuses[0].LimitRemaining)
	})
	t.Run("the domain", func(t *testing.T) {
		r := request(entries("remote_address", "192.0.2.3"))
		r.Domain = "other"
		assert.Nil(t, call(r).Statuses[0].CurrentLimit, "no rule")
	})
	t.Run("other algorithms", func(t *testing.T) {
		resp := call(request(entries("bucket", "a")))
		assert.Equal(t, rls.RateLimitResponse_RateLimit_UNKNOWN, resp.Statuses[0].CurrentLimit.Unit)
		assert.EqualValues(t, 5, resp.Statuses[0].CurrentLimit.RequestsPerUnit)
		assert.Equal(t, ok, call(request(entries("queue", "a"))).OverallCode)
		assert.Equal(t, over, call(request(entries("queue", "a"))).OverallCode, "a delay cannot be kept")
		resp = call(request(entries("user", "mallory")))
		assert.Equal(t, over, resp.OverallCode)
		assert.Empty(t, resp.ResponseHeadersToAdd, "it never passes")
	})
	t.Run("errors", func(t *testing.T) {
		for name, r := range map[string]*rls.RateLimitRequest{
			"no descriptors":           request(),
			"an address that is none":  request(entries("remote_address", "x")),
			"a key that a rule needs":  request(entries("kind", "needed")),
			"a key that is much":       request(entries("bucket", strings.Repeat("x", 2000))),
			"a look at what is needed": request(entries("kind", "needed"), entries("user", "ann")),
		} {
			_, err := c.ShouldRateLimit(t.Context(), r)
			assert.Equal(t, codes.InvalidArgument, status.Code(err), name)
			assert.NotContains(t, status.Convert(err).Message(), "xxx", name)
		}
	})
}

// TestEnvoysConfigurationSendsWhatTheRulesNeed reads gateways/envoy.yaml as Envoy
// does. It applies the actions there to a request, and sends the descriptors.
func TestEnvoysConfigurationSendsWhatTheRulesNeed(t *testing.T) {
	var tree any
	require.NoError(t, yaml.Unmarshal([]byte(configuration(t, "envoy.yaml")), &tree))
	text, err := json.Marshal(tree)
	require.NoError(t, err)
	var all bootstrap.Bootstrap
	require.NoError(t, protojson.Unmarshal(text, &all))
	require.NoError(t, all.ValidateAll())
	var http manager.HttpConnectionManager
	require.NoError(t, all.StaticResources.Listeners[0].FilterChains[0].Filters[0].GetTypedConfig().UnmarshalTo(&http))
	require.NoError(t, http.ValidateAll())
	var limit filter.RateLimit
	require.NoError(t, http.HttpFilters[0].GetTypedConfig().UnmarshalTo(&limit))
	require.NoError(t, limit.ValidateAll())
	assert.True(t, limit.FailureModeDeny)
	assert.Equal(t, all.StaticResources.Clusters[0].Name, limit.RateLimitService.GrpcService.GetEnvoyGrpc().ClusterName)

	s := start(t, config{})
	c := envoy(t, s)
	send := func(address, path string) *rls.RateLimitResponse {
		fields := map[string]string{":method": "GET", ":path": path, ":authority": "example.com"}
		var r rls.RateLimitRequest
		r.Domain = limit.Domain
		for _, of := range http.GetRouteConfig().VirtualHosts[0].RateLimits {
			d := new(descriptors.RateLimitDescriptor)
			for _, a := range of.Actions {
				switch a := a.ActionSpecifier.(type) {
				case *route.RateLimit_Action_RemoteAddress_:
					d.Entries = append(d.Entries, &descriptors.RateLimitDescriptor_Entry{Key: "remote_address", Value: address})
				case *route.RateLimit_Action_RequestHeaders_:
					d.Entries = append(d.Entries, &descriptors.RateLimitDescriptor_Entry{Key: a.RequestHeaders.DescriptorKey, Value: fields[a.RequestHeaders.HeaderName]})
				default:
					t.Fatalf("an action of type %T", a)
				}
			}
			r.Descriptors = append(r.Descriptors, d)
		}
		resp, err := c.ShouldRateLimit(t.Context(), &r)
		require.NoError(t, err)
		return resp
	}
	for range 5 {
		assert.Equal(t, ok, send("192.0.2.1", "/search/x?q").OverallCode)
	}
	assert.Equal(t, over, send("192.0.2.1", "/search/y").OverallCode)
	assert.Equal(t, ok, send("192.0.2.1", "/other").OverallCode)
	assert.Equal(t, ok, send("192.0.2.2", "/search/x").OverallCode)
}

// TestTheRulesOfThePageDoWhatItPromises tests the table in docs/migrate.md. A row has its own text, a rule,
// and descriptors, each with its remaining budget. There -1 is a denial, and none means that no rule applies.
func TestTheRulesOfThePageDoWhatItPromises(t *testing.T) {
	page, err := os.ReadFile("../../../docs/migrate.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(page), "\n## envoyproxy/ratelimit\n")
	require.True(t, found)
	const none = 1 << 20
	type want struct {
		left  int
		pairs []string
	}
	of := func(left int, pairs ...string) want { return want{left, pairs} }
	rows := []struct {
		there, here string
		rule        string
		want        []want
	}{
		{"`domain: web`", "`match: {attributes: {domain: [web]}}`", "match: {attributes: {domain: [web]}}, limit: fixed-window 2/h", []want{of(1, "a", "b"), of(0, "c", "d"), of(-1, "a", "b")}},
		{"`key: user`", "`key: user`, with `optional: true`", "key: user, optional: true, limit: fixed-window 1/h", []want{of(0, "user", "ann"), of(-1, "user", "ann"), of(0, "user", "bob"), of(none, "x", "y")}},
		{"`value: mallory`", "`match: {attributes: {user: [mallory]}}`", "match: {attributes: {user: [mallory]}}, limit: fixed-window 1/h", []want{of(0, "user", "mallory"), of(-1, "user", "mallory"), of(none, "user", "ann")}},
		{"`user`, in it `path`", "`key: [user, path]`", "key: [user, path], optional: true, limit: fixed-window 1/h", []want{of(0, "user", "a", "path", "/"), of(-1, "user", "a", "path", "/"), of(0, "user", "a", "path", "/b"), of(none, "user", "a")}},
		{"`plan` with the value `free`", "`match: {attributes: {plan: [free]}}`, `key: user`", "match: {attributes: {plan: [free]}}, key: user, limit: fixed-window 1/h", []want{of(0, "plan", "free", "user", "a"), of(-1, "plan", "free", "user", "a"), of(none, "plan", "pro", "user", "a")}},
		{"`plan` with the value `free`", "`plans: {free: …}` in one rule", "key: user, limit: unlimited, plans: {free: fixed-window 1/h}", []want{of(0, "plan", "free", "user", "a"), of(-1, "plan", "free", "user", "a"), of(none, "plan", "pro", "user", "a")}},
		{"`value: api_*`", "`match: {prefix: {key: [api_]}}`", "match: {prefix: {key: [api_]}}, key: key, limit: fixed-window 1/h", []want{of(0, "key", "api_a"), of(-1, "key", "api_a"), of(0, "key", "api_b"), of(none, "key", "web")}},
		{"`share_threshold: true`", "without the attribute in `key`", "match: {prefix: {key: [api_]}}, limit: fixed-window 1/h", []want{of(0, "key", "api_a"), of(-1, "key", "api_b")}},
		{"without `share_threshold`", "with the attribute in `key`", "match: {prefix: {key: [api_]}}, key: key, limit: fixed-window 1/h", []want{of(0, "key", "api_a"), of(0, "key", "api_b")}},
		{"`unit: second`, `minute`, `hour`", "`limit: fixed-window 5/s`, `5/m`, `5/h`", "limit: fixed-window 5/s", []want{of(4, "a", "b")}},
		{"`unit: second`, `minute`, `hour`", "`limit: fixed-window 5/s`, `5/m`, `5/h`", "limit: fixed-window 5/m", []want{of(4, "a", "b")}},
		{"`unit: day`, `week`, `month`", "`limit: calendar 5/day UTC`", "limit: calendar 5/day UTC", []want{of(4, "a", "b")}},
		{"`unit: day`, `week`, `month`", "`calendar 5/week UTC`", "limit: calendar 5/week UTC", []want{of(4, "a", "b")}},
		{"`unit: day`, `week`, `month`", "`calendar 5/month UTC`", "limit: calendar 5/month UTC", []want{of(4, "a", "b")}},
		{"`unit: year`", "`limit: fixed-window 5/8760h`", "limit: fixed-window 5/8760h", []want{of(4, "a", "b")}},
		{"`unit_multiplier: 3`", "`limit: fixed-window 5/3m`", "limit: fixed-window 5/3m", []want{of(4, "a", "b")}},
		{"`unlimited: true`", "`limit: unlimited`", "limit: unlimited", []want{of(none, "a", "b")}},
		{"`unlimited: true`", "`allow: true`", "limit: fixed-window 1/h}\n- {name: other, allow: true, match: {attributes: {user: [root]}}", []want{of(0, "user", "a"), of(none, "user", "root"), of(-1, "user", "a")}},
		{"`requests_per_unit: 0`", "`limit: blocked`", "limit: blocked", []want{of(-1, "a", "b")}},
		{"`shadow_mode: true`", "`shadow: true`", "shadow: true, limit: blocked", []want{of(none, "a", "b")}},
		{"`name` and `replaces`", "`overrides`", "key: user, limit: fixed-window 3/h, overrides: [{key: ann, limit: fixed-window 9/h}]", []want{of(8, "user", "ann"), of(2, "user", "bob")}},
		{"`name` and `replaces`", "`not`", "match: {not: {user: [ann]}}, key: user, limit: fixed-window 3/h}\n- {name: other, match: {attributes: {user: [ann]}}, limit: fixed-window 9/h", []want{of(8, "user", "ann"), of(2, "user", "bob")}},
	}
	for _, row := range rows {
		line := ""
		for l := range strings.Lines(text) {
			if there, here, ok := strings.Cut(strings.TrimPrefix(l, "|"), "|"); ok && strings.Contains(there, row.there) && strings.Contains(here, row.here) {
				line = l
			}
		}
		assert.NotEmpty(t, line, "the page has no row with %s and %s", row.there, row.here)
		set, err := policy.Parse([]byte("rules:\n- {name: rule, " + row.rule + "}\n"))
		require.NoError(t, err, row.rule)
		policies, err := policy.New(set, nil)
		require.NoError(t, err)
		s := &service{limiter: policies}
		for _, w := range row.want {
			resp, err := s.ShouldRateLimit(t.Context(), request(entries(w.pairs...)))
			require.NoError(t, err, row.rule)
			left := int(resp.Statuses[0].LimitRemaining)
			switch {
			case resp.OverallCode == over:
				left = -1
			case resp.Statuses[0].CurrentLimit == nil:
				left = none
			}
			assert.Equal(t, w.left, left, "%s, of %v", row.rule, w.pairs)
		}
	}
}

// TestTraefiksForwardAuthIsAnswered sends requests as Traefik does. They have
// the client's header fields, except for those that Traefik replaces by its own.
func TestTraefiksForwardAuthIsAnswered(t *testing.T) {
	var traefik struct {
		HTTP struct {
			Middlewares map[string]struct {
				ForwardAuth struct {
					Address            string
					TrustForwardHeader bool `yaml:"trustForwardHeader"`
				} `yaml:"forwardAuth"`
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(configuration(t, "traefik.yaml")), &traefik))
	auth := traefik.HTTP.Middlewares["ratelimit"].ForwardAuth
	require.False(t, auth.TrustForwardHeader)
	s := start(t, config{})
	for address, preserve := range map[string]bool{"192.0.2.1": false, "192.0.2.2": true} { // the value is preserveRequestMethod
		forward := func(method, uri string, header ...string) *http.Response {
			header = append(header, "X-Forwarded-Method", method, "X-Forwarded-Proto", "http", "X-Forwarded-Host", "example.com", "X-Forwarded-Uri", uri,
				"X-Forwarded-For", address)
			if !preserve {
				method = "GET"
			}
			return send(t, http.DefaultClient, method, strings.Replace(auth.Address, "127.0.0.1:8080", s.web, 1), header...)
		}
		for range 5 {
			assert.Equal(t, 204, forward("POST", "/search/x", spoofed...).StatusCode)
		}
		for _, call := range append(calls, nil) {
			resp := forward("POST", "/search/x", append(call, spoofed...)...)
			assert.Equal(t, 429, resp.StatusCode)
			assert.NotEmpty(t, resp.Header.Get("Retry-After"))
			assert.NotEmpty(t, resp.Header.Get("RateLimit"))
		}
	}
}

// tokenRules returns the rules of README.md.
func tokenRules(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rules, found := strings.Cut(string(page), "  ```yaml\n  - {name: requests")
	require.True(t, found)
	rules, _, _ = strings.Cut(rules, "```")
	return "rules:\n- {name: requests" + strings.ReplaceAll(rules, "\n  -", "\n-")
}

// TestEnvoyChargesAStreamWhenItIsDone plays two patterns. Envoy's rate limit filter calls with an addend
// of 0, and charges with apply_on_stream_done. The AI gateway also has a descriptor that counts requests.
func TestEnvoyChargesAStreamWhenItIsDone(t *testing.T) {
	s := start(t, config{})
	s.edit(t, tokenRules(t)+"\n- {name: ready, match: {attributes: {ready: [now]}}, limit: blocked}\n")
	c := envoy(t, s)
	call := func(of ...*descriptors.RateLimitDescriptor) *rls.RateLimitResponse {
		t.Helper()
		resp, err := c.ShouldRateLimit(t.Context(), request(of...))
		require.NoError(t, err)
		require.Len(t, resp.Statuses, len(of))
		return resp
	}
	require.Eventually(t, func() bool { return call(entries("ready", "now")).OverallCode == over }, 20*time.Second, 10*time.Millisecond)
	with := func(addend uint64, pairs ...string) *descriptors.RateLimitDescriptor {
		d := entries(pairs...)
		d.HitsAddend = wrapperspb.UInt64(addend)
		return d
	}

	t.Run("the rate limit filter", func(t *testing.T) {
		passed := 0
		for range 100 {
			if call(with(0, "user", "ann", "model", "m")).OverallCode == over {
				continue
			}
			passed++
			call(with(300, "user", "ann", "model", "m")) // Envoy ignores this answer
		}
		assert.Equal(t, 4, passed, "of a limit of 1,000 tokens")
		denied := call(with(0, "user", "ann", "model", "m"))
		require.Len(t, denied.ResponseHeadersToAdd, 1)
		assert.Equal(t, "Retry-After", denied.ResponseHeadersToAdd[0].Key)
		assert.InDelta(t, 201*3.6, denied.Statuses[0].DurationUntilReset.AsDuration().Seconds(), 60, "200 tokens are owed, at 1,000 an hour")
		assert.Equal(t, "tokens", denied.Statuses[0].CurrentLimit.Name)
		assert.Equal(t, ok, call(with(0, "user", "ann", "model", "other")).OverallCode)

		assert.Equal(t, over, call(with(30_000, "user", "eve", "model", "m")).OverallCode)
		denied = call(with(0, "user", "eve", "model", "m"))
		assert.Equal(t, over, denied.OverallCode)
		assert.InDelta(t, 29*3600, denied.Statuses[0].DurationUntilReset.AsDuration().Seconds(), 60)
	})
	t.Run("the AI gateway", func(t *testing.T) {
		passed := 0
		var last *rls.RateLimitResponse
		for range 20 {
			last = call(entries("user", "bob"), with(0, "user", "bob", "model", "m"))
			if last.OverallCode == over {
				continue
			}
			passed++
			call(with(300, "user", "bob", "model", "m"))
		}
		assert.Equal(t, 4, passed)
		assert.Equal(t, []rls.RateLimitResponse_Code{ok, over}, []rls.RateLimitResponse_Code{last.Statuses[0].Code, last.Statuses[1].Code})
		left := call(with(0, "user", "bob"))
		assert.EqualValues(t, 56, left.Statuses[0].LimitRemaining, "four requests passed, and each is one")
	})
	t.Run("one request of 90 tokens", func(t *testing.T) {
		resp := call(entries("user", "carl"), with(90, "user", "carl", "model", "m"))
		assert.Equal(t, ok, resp.OverallCode)
		assert.EqualValues(t, 59, resp.Statuses[0].LimitRemaining)
		assert.InDelta(t, 910, resp.Statuses[1].LimitRemaining, 20)
	})
}
