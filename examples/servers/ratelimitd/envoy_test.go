package main

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
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
	"google.golang.org/protobuf/proto"
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

// answering returns calls by Envoy to a server with these rules.
func answering(t *testing.T, rules string) (rls.RateLimitServiceClient, func(...*descriptors.RateLimitDescriptor) *rls.RateLimitResponse) {
	s := start(t, config{})
	s.edit(t, rules+"\n- {name: ready, match: {attributes: {ready: [now]}}, limit: blocked}\n")
	c := envoy(t, s)
	call := func(of ...*descriptors.RateLimitDescriptor) *rls.RateLimitResponse {
		t.Helper()
		resp, err := c.ShouldRateLimit(t.Context(), request(of...))
		require.NoError(t, err)
		require.Len(t, resp.Statuses, len(of))
		return resp
	}
	require.Eventually(t, func() bool { return call(entries("ready", "now")).OverallCode == over }, 20*time.Second, 10*time.Millisecond)
	return c, call
}

// counting returns a descriptor with an addend of its own.
func counting(addend uint64, pairs ...string) *descriptors.RateLimitDescriptor {
	d := entries(pairs...)
	d.HitsAddend = wrapperspb.UInt64(addend)
	return d
}

func TestEnvoyIsAnswered(t *testing.T) {
	type outcome []rls.RateLimitResponse_Code
	type answered struct {
		addend uint32 // the request's
		of     []*descriptors.RateLimitDescriptor
		want   outcome
		left   []int // the remaining budgets, or nil if they do not matter
	}
	of := func(d ...*descriptors.RateLimitDescriptor) []*descriptors.RateLimitDescriptor { return d }
	one, two := entries("generic_key", "one"), entries("generic_key", "two")
	c, _ := answering(t, envoyRules)
	for name, calls := range map[string][]answered{
		"descriptors that nest, and paths without their queries": {
			{of: of(entries("user", "ann", "path", "/a?q=1")), want: outcome{ok}, left: []int{2}},
			{of: of(entries("user", "ann", "path", "/a?q=2")), want: outcome{ok}, left: []int{1}},
			{of: of(entries("user", "ann", "path", "/a?q=1")), want: outcome{ok}, left: []int{0}},
			{of: of(entries("user", "ann", "path", "/a?q=2")), want: outcome{over}},
			{of: of(entries("user", "ann", "path", "/b")), want: outcome{ok}},
			{of: of(entries("user", "bob", "path", "/a")), want: outcome{ok}},
		},
		"a rule that matches two descriptors is charged once": {
			{of: of(entries("remote_address", "192.0.2.1"), entries("remote_address", "192.0.2.1", "user", "carl")), want: outcome{ok, ok}, left: []int{9, 9}},
		},
		"addends": {
			{addend: 4, of: of(entries("remote_address", "192.0.2.2")), want: outcome{ok}, left: []int{6}},
			{addend: 4, of: of(counting(5, "remote_address", "192.0.2.2")), want: outcome{ok}, left: []int{1}}, // the descriptor's own counts
			{addend: 4, of: of(counting(0, "remote_address", "192.0.2.2")), want: outcome{ok}, left: []int{1}}, // a look
			{addend: 4, of: of(counting(2, "remote_address", "192.0.2.2")), want: outcome{over}},
			{addend: 4, of: of(counting(1<<60, "remote_address", "192.0.2.2")), want: outcome{over}}, // more than there ever is
		},
		"descriptors that disagree are decided apart, all or none": {
			{of: of(one, two), want: outcome{ok, ok}},
			{addend: 3, of: of(two), want: outcome{ok}, left: []int{0}},
			{of: of(one, two), want: outcome{ok, over}},
			{of: of(one), want: outcome{ok}, left: []int{2}}, // it was given back
		},
		"IPv6 addresses of one /64": {
			{of: of(entries("remote_address", "2001:db8::1")), want: outcome{ok}, left: []int{9}},
			{of: of(entries("remote_address", "2001:db8::2")), want: outcome{ok}, left: []int{8}},
		},
		"a leaky bucket's delay is a denial": {
			{of: of(entries("queue", "a")), want: outcome{ok}},
			{of: of(entries("queue", "a")), want: outcome{over}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i, call := range calls {
				r := request(call.of...)
				r.HitsAddend = call.addend
				resp, err := c.ShouldRateLimit(t.Context(), r)
				require.NoError(t, err)
				var got outcome
				var left []int
				for _, s := range resp.Statuses {
					got, left = append(got, s.Code), append(left, int(s.LimitRemaining))
				}
				assert.Equal(t, call.want, got, "call %d", i)
				assert.Equal(t, slices.Max(call.want), resp.OverallCode, "call %d", i)
				if call.left != nil {
					assert.Equal(t, call.left, left, "call %d", i)
				}
			}
		})
	}
}

func TestEnvoyIsAnsweredTheLimit(t *testing.T) {
	c, _ := answering(t, envoyRules)
	for name, row := range map[string]struct {
		domain string
		of     *descriptors.RateLimitDescriptor
		want   *rls.RateLimitResponse_RateLimit
	}{
		"a window of a unit": {"web", entries("user", "ann", "path", "/a"),
			&rls.RateLimitResponse_RateLimit{Name: "pair", RequestsPerUnit: 3, Unit: rls.RateLimitResponse_RateLimit_HOUR}},
		"a bucket has no unit": {"web", entries("bucket", "a"),
			&rls.RateLimitResponse_RateLimit{Name: "bucket", RequestsPerUnit: 5, Unit: rls.RateLimitResponse_RateLimit_UNKNOWN}},
		"no rule for another domain": {"other", entries("remote_address", "192.0.2.3"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := c.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: row.domain, Descriptors: []*descriptors.RateLimitDescriptor{row.of}})
			require.NoError(t, err)
			assert.True(t, proto.Equal(row.want, resp.Statuses[0].CurrentLimit), "%v", resp)
		})
	}
}

func TestEnvoyIsAnsweredRetryAfter(t *testing.T) {
	_, call := answering(t, envoyRules)
	call(counting(3, "user", "ann", "path", "/a"))
	resp := call(entries("user", "ann", "path", "/a"))
	assert.Equal(t, over, resp.OverallCode)
	assert.InDelta(t, 3600, resp.Statuses[0].DurationUntilReset.AsDuration().Seconds(), 60)
	require.Len(t, resp.ResponseHeadersToAdd, 1)
	assert.Equal(t, "Retry-After", resp.ResponseHeadersToAdd[0].Key)
	assert.Regexp(t, `^3[56]\d\d$`, resp.ResponseHeadersToAdd[0].Value)

	resp = call(entries("user", "mallory"))
	assert.Equal(t, over, resp.OverallCode)
	assert.Empty(t, resp.ResponseHeadersToAdd, "it never passes")
}

func TestEnvoyIsAnsweredAnError(t *testing.T) {
	c, _ := answering(t, envoyRules)
	negative := counting(1, "bucket", "a")
	negative.IsNegativeHits = true
	for name, row := range map[string]struct {
		r    *rls.RateLimitRequest
		want codes.Code
	}{
		"no descriptors":           {request(), codes.InvalidArgument},
		"an address that is none":  {request(entries("remote_address", "x")), codes.InvalidArgument},
		"a key that a rule needs":  {request(entries("kind", "needed")), codes.InvalidArgument},
		"a key that is much":       {request(entries("bucket", strings.Repeat("x", 2000))), codes.InvalidArgument},
		"a look at what is needed": {request(entries("kind", "needed"), entries("user", "ann")), codes.InvalidArgument},
		"negative hits":            {request(negative), codes.Unimplemented},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.ShouldRateLimit(t.Context(), row.r)
			assert.Equal(t, row.want, status.Code(err))
			assert.NotContains(t, status.Convert(err).Message(), "xxx")
		})
	}
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
	_, call := answering(t, tokenRules(t))
	for user, row := range map[string]struct {
		before []*descriptors.RateLimitDescriptor
		want   []rls.RateLimitResponse_Code // of the calls after the limit
		tokens int                          // the index of the tokens' descriptor
	}{
		"filter":     {[]*descriptors.RateLimitDescriptor{counting(0, "user", "filter", "model", "m")}, []rls.RateLimitResponse_Code{over}, 0},
		"AI gateway": {[]*descriptors.RateLimitDescriptor{entries("user", "AI gateway"), counting(0, "user", "AI gateway", "model", "m")}, []rls.RateLimitResponse_Code{ok, over}, 1},
	} {
		t.Run(user, func(t *testing.T) {
			for i := range 50 {
				resp := call(row.before...)
				if i < 4 {
					require.Equal(t, ok, resp.OverallCode, "of a limit of 1,000 tokens")
					call(counting(300, "user", user, "model", "m")) // Envoy ignores this answer
					continue
				}
				for n, want := range row.want {
					require.Equal(t, want, resp.Statuses[n].Code)
				}
				tokens := resp.Statuses[row.tokens]
				require.InDelta(t, 201*3.6, tokens.DurationUntilReset.AsDuration().Seconds(), 60, "200 tokens are owed, at 1,000 an hour")
				require.Equal(t, "tokens", tokens.CurrentLimit.Name)
				require.Len(t, resp.ResponseHeadersToAdd, 1)
				require.Equal(t, "Retry-After", resp.ResponseHeadersToAdd[0].Key)
			}
			assert.Equal(t, ok, call(counting(0, "user", user, "model", "other")).OverallCode)
			assert.EqualValues(t, 60-4*row.tokens, call(counting(0, "user", user)).Statuses[0].LimitRemaining, "the AI gateway's requests that passed")
		})
	}
}

func TestEnvoysTokensAreOwedOrLeft(t *testing.T) {
	_, call := answering(t, tokenRules(t))
	assert.Equal(t, over, call(counting(30_000, "user", "eve", "model", "m")).OverallCode)
	denied := call(counting(0, "user", "eve", "model", "m"))
	assert.Equal(t, over, denied.OverallCode)
	assert.InDelta(t, 29*3600, denied.Statuses[0].DurationUntilReset.AsDuration().Seconds(), 60)

	resp := call(entries("user", "carl"), counting(90, "user", "carl", "model", "m"))
	assert.Equal(t, ok, resp.OverallCode)
	assert.EqualValues(t, 59, resp.Statuses[0].LimitRemaining)
	assert.InDelta(t, 910, resp.Statuses[1].LimitRemaining, 20)
}
