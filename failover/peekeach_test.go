package failover_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// outStack is a stack whose store fails.
type outStack struct{ *ratelimit.Layered[string] }

func (outStack) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, ratelimit.ErrUnavailable
}

func (outStack) PeekEach(context.Context, string, int) ([]ratelimit.Decision, error) {
	return nil, ratelimit.ErrUnavailable
}

func TestPeekEachLooksWhereTheDecisionIsMade(t *testing.T) {
	stack := func(month, minute int) *ratelimit.Layered[string] {
		layer := func(n int, name string) ratelimit.Layer[string] {
			l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(n)).Named(name), nil))
			return ratelimit.By(l, func(key string) (string, error) {
				if key == "none" && name == "minute" {
					return "", ratelimit.SkipLayer
				}
				return key, nil
			})
		}
		return ratelimit.Must(ratelimit.All(layer(month, "month"), layer(minute, "minute")))
	}
	shared, local := stack(1000, 100), stack(100, 10)
	require.True(t, shared.Allow("ann", 5))
	up, open := over(t, shared, local, failover.Options{Timeout: time.Minute}), over(t, shared, local, failover.Options{})
	open.Force(failover.StateOpen)
	for name, c := range map[string]struct {
		l    *failover.Limiter[string]
		key  string
		cost int
		want []string // each layer's name, Remaining, Allowed and Degraded, and whether a retry helps
		err  error
	}{
		"the primary decides":                {l: up, key: "ann", cost: 1, want: []string{"month 995 true false false", "minute 95 true false false"}},
		"the stand-in decides":               {l: open, key: "ann", cost: 1, want: []string{"month 100 true true false", "minute 10 true true false"}},
		"a layer does not apply":             {l: open, key: "none", cost: 1, want: []string{"month 100 true true false", " 0 false false false"}},
		"a cost that the primary may allow":  {l: open, key: "ann", cost: 50, want: []string{"month 100 true true false", "minute 10 false true true"}},
		"the primary fails":                  {l: ratelimit.Must(failover.New[string](outStack{shared}, local, nil)), key: "ann", cost: 1, want: []string{"month 100 true true false", "minute 10 true true false"}},
		"neither limiter has several layers": {l: ratelimit.Must(failover.New[string](failover.AllowAll[string](), failover.DenyAll[string](), nil)), err: errors.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			each, err := c.l.PeekEach(t.Context(), c.key, c.cost)
			require.ErrorIs(t, err, c.err)
			var got []string
			for _, d := range each {
				got = append(got, fmt.Sprint(d.Limit.Name, " ", d.Remaining, d.Allowed, d.Degraded, d.RetryAfter > 0))
			}
			assert.Equal(t, c.want, got)
		})
	}
}
