package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
)

// many returns a file with the given number of rules. Three of them match a benchRequest, one by its route.
func many(rules int, route string) string {
	var b strings.Builder
	b.WriteString(`rules:
- {name: user, key: user, limit: token-bucket 1000000000/s burst 1000000000}
- {name: route, match: {route: "` + route + `"}, key: ip, limit: token-bucket 1000000000/s burst 1000000000}
- {name: service, limit: token-bucket 1000000000/s burst 1000000000}
`)
	for i := 3; i < rules; i++ {
		match := fmt.Sprintf("route: /r%d/", i)
		if i%2 == 0 {
			match = fmt.Sprintf("attributes: {tenant: t%d}", i)
		}
		fmt.Fprintf(&b, "- {name: r%d, match: {%s}, key: user, limit: fixed-window 5/s, plans: {free: fixed-window 1/s}}\n", i, match)
	}
	return b.String()
}

type benchRequest struct{ user, ip string }

func (r *benchRequest) Attribute(name string) (string, bool) {
	switch name {
	case "user":
		return r.user, true
	case "ip":
		return r.ip, true
	case "path":
		return "/v1/charges", true
	case "method":
		return "POST", true
	case "tenant":
		return "acme", true
	}
	return "", false
}

// BenchmarkPolicy compares rules, three of them matching, with the same three layers built by hand.
func BenchmarkPolicy(b *testing.B) {
	requests := make([]*benchRequest, 1024)
	for i := range requests {
		requests[i] = &benchRequest{fmt.Sprintf("user:%d", i), fmt.Sprintf("192.0.2.%d", i%256)}
	}
	run := func(name string, allowed func(*benchRequest) bool) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if !allowed(requests[i%1024]) {
					b.Fatal("denied")
				}
			}
		})
	}
	for _, rules := range []int{3, 100, 1000} {
		literal, wildcard := inForceFor(b, rules, "POST /v1/charges"), inForceFor(b, rules, "POST /v1/{what}")
		run(fmt.Sprintf("rules=%d", rules), func(r *benchRequest) bool { return taken(literal.Take(b.Context(), r, 1)) })
		run(fmt.Sprintf("rules=%d/call=Allow", rules), func(r *benchRequest) bool { return literal.Allow(r, 1) })
		run(fmt.Sprintf("rules=%d/route=wildcard", rules), func(r *benchRequest) bool { return taken(wildcard.Take(b.Context(), r, 1)) })
	}
	for _, reuse := range []bool{true, false} {
		reported := 0
		hook := func(d policy.Decision) { reported += len(d.Rules) }
		watched, err := policy.New(parsed(b, many(3, "POST /v1/charges")), &policy.Options{OnDecision: hook, ReuseRules: reuse})
		require.NoError(b, err)
		name := map[bool]string{true: "reused", false: "kept"}[reuse]
		run("rules=3/hook="+name, func(r *benchRequest) bool { return taken(watched.Take(b.Context(), r, 1)) })
	}
	seen := 0
	hooked := byHand(b, func(ratelimit.Event[*benchRequest]) { seen++ })
	run("layers=3/hook=on", func(r *benchRequest) bool { return taken(hooked.Take(b.Context(), r, 1)) })
	layers := byHand(b, nil)
	run("layers=3", func(r *benchRequest) bool { return taken(layers.Take(b.Context(), r, 1)) })
	run("layers=3/call=Allow", func(r *benchRequest) bool { return layers.Allow(r, 1) })
}

func taken(d ratelimit.Decision, err error) bool { return d.Allowed && err == nil }

func inForceFor(b *testing.B, rules int, route string) *policy.Policies {
	set, err := policy.Parse([]byte(many(rules, route)))
	require.NoError(b, err)
	p, err := policy.New(set, nil)
	require.NoError(b, err)
	return p
}

// byHand builds the three layers of the rules matching a benchRequest. Unless hook is nil, it receives each layer's events.
func byHand(b *testing.B, hook func(ratelimit.Event[*benchRequest])) *ratelimit.Layered[*benchRequest] {
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000_000), 1_000_000_000)
	users := ratelimit.Must(ratelimit.New[string](limit, nil))
	routes := ratelimit.Must(ratelimit.New[string](limit, nil))
	service := ratelimit.Must(ratelimit.New[struct{}](limit, nil))
	layers := []ratelimit.Layer[*benchRequest]{
		ratelimit.By(users, func(r *benchRequest) (string, error) { return r.user, nil }),
		ratelimit.By(routes, func(r *benchRequest) (string, error) { return r.ip, nil }),
		ratelimit.Global[*benchRequest](service),
	}
	for i := range layers {
		if hook != nil {
			layers[i].Observe = hook
		}
	}
	l, err := ratelimit.All(layers...)
	require.NoError(b, err)
	return l
}
