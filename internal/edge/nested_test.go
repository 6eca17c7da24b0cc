package edge_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/keyfunc"
)

// left returns the limiter's remaining budget.
func left(t *testing.T, l ratelimit.Limiter[*request]) int {
	t.Helper()
	d, err := ratelimit.Peek(t.Context(), l, &request{t.Context()}, 0)
	require.NoError(t, err)
	return d.Remaining
}

// The first charge is given back by a grant, and the later ones by their reservations.
func TestTheChargeOfARequestThatIsRefusedInsideIsGivenBack(t *testing.T) {
	refuse := func(cause outcome.Cause) func(context.Context) {
		return func(ctx context.Context) { edge.MarkRefused(ctx, cause) }
	}
	for name, row := range map[string]struct {
		inside func(ctx context.Context)
		left   int // the remaining budget of 100, after three requests
	}{
		"a denial":                 {refuse(outcome.CauseNone), 100},
		"a denial two deep":        {func(ctx context.Context) { edge.MarkRefused(edge.Inside(ctx), outcome.CauseNone) }, 100},
		"a store that is down":     {refuse(outcome.CauseUnavailable), 100},
		"a missing key":            {refuse(outcome.CauseKey), 97},
		"a full table":             {refuse(outcome.CauseTableFull), 97},
		"served":                   {edge.MarkServed, 97},
		"served, and then refused": {func(ctx context.Context) { edge.MarkServed(ctx); edge.MarkRefused(ctx, outcome.CauseNone) }, 97},
		"no middleware inside":     {func(context.Context) {}, 97},
	} {
		for kind, limiter := range map[string]func() ratelimit.Limiter[*request]{
			"keys": func() ratelimit.Limiter[*request] {
				return ratelimit.Must(edge.PerKey(ratelimit.FixedWindow(ratelimit.PerHour(100)), client))
			},
			"stack": func() ratelimit.Limiter[*request] { return stack(ratelimit.FixedWindow(ratelimit.PerHour(100))) },
			"leaky": func() ratelimit.Limiter[*request] { return stack(ratelimit.LeakyBucket(ratelimit.PerHour(1), 100)) },
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := limiter()
					m := newMiddleware(t, l, edge.Options[*request]{})
					assert.True(t, m.Returns())
					for range 3 {
						m.serve(t.Context(), func(ctx context.Context, _ *edge.Charge[*request]) { row.inside(ctx) })
					}
					if kind == "leaky" && row.left == 97 {
						return // each request is held until its turn, so its charge is regained by then
					}
					assert.Equal(t, row.left, left(t, l))
				})
			})
		}
	}
}

// A grant gives back the request's spending alone. If the spending is regained, or was never charged, nothing is granted.
func TestAChargeThatWasNotMadeIsNotGivenBack(t *testing.T) {
	bucket := ratelimit.TokenBucket(ratelimit.PerSecond(1), 10)
	for name, row := range map[string]struct {
		opts   edge.Options[*request]
		takes  time.Duration // the time until the request is refused inside
		before int           // the units spent before
		want   int           // the remaining units after it
	}{
		"charged":                           {edge.Options[*request]{}, 0, 5, 5},
		"regained, and the rest is others'": {edge.Options[*request]{}, time.Second, 0, 8},
		"free":                              {edge.Options[*request]{Cost: func(*request) int { return 0 }}, 0, 5, 5},
		"denied, in a shadow":               {edge.Options[*request]{Shadow: true, Cost: func(*request) int { return 6 }}, 0, 5, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Map(ratelimit.Must(ratelimit.New[string](bucket, nil)), client)
				l.Allow(&request{t.Context()}, row.before)
				newMiddleware(t, l, row.opts).serve(t.Context(), func(ctx context.Context, _ *edge.Charge[*request]) {
					if row.takes > 0 {
						time.Sleep(row.takes)
						l.Allow(&request{ctx}, 2) // other requests spend 2
					}
					edge.MarkRefused(ctx, outcome.CauseNone)
				})
				assert.Equal(t, row.want, left(t, l))
			})
		})
	}
	open := newMiddleware(t, adjusting{failing{keyfunc.ErrMisconfigured}, t}, edge.Options[*request]{Shadow: true, Logger: quiet})
	open.serve(t.Context(), func(ctx context.Context, _ *edge.Charge[*request]) { edge.MarkRefused(ctx, outcome.CauseNone) })
}

// adjusting is a limiter that charges nothing. Its Adjust must not be called.
type adjusting struct {
	failing
	t *testing.T
}

func (a adjusting) Adjust(context.Context, *request, int) error {
	a.t.Error("a grant for a request that was not charged")
	return nil
}

// unsettling is a limiter whose charges cannot be given back.
type unsettling struct{ failing }

func (unsettling) Take(context.Context, *request, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{Allowed: true, ResetAfter: time.Hour}, nil
}

func (unsettling) Adjust(context.Context, *request, int) error { return ratelimit.ErrUnavailable }

func (unsettling) Reserve(context.Context, *request, int, time.Duration) (*ratelimit.Reservation, error) {
	return ratelimit.NewReservation(ratelimit.Decision{Allowed: true}, func(int) error { return ratelimit.ErrUnavailable }), nil
}

func TestAChargeThatCannotBeGivenBackIsCounted(t *testing.T) {
	for name, settles := range map[string]bool{"settled": true, "refused inside": false} {
		log, lines := logger()
		m := newMiddleware(t, unsettling{}, edge.Options[*request]{Settles: settles, Logger: log})
		m.serve(t.Context(), func(ctx context.Context, _ *edge.Charge[*request]) { edge.MarkRefused(ctx, outcome.CauseNone) })
		assert.Equal(t, edge.Stats{Allowed: 1, Unsettled: 1}, m.Stats(), name)
		assert.Contains(t, lines.String(), `level=WARN msg="test: charge not settled" error="ratelimit: unavailable"`, name)
	}
}
