package failover_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
	"github.com/weir-go/ratelimit/lease"
)

// wrappers put another limiter in front of l.
var wrappers = map[string]func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string]{
	"itself": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] { return l },
	"map": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Map[string, string](l, func(k string) (string, error) { return k, nil })
	},
	"stack": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(ratelimit.All(ratelimit.By(l, func(k string) (string, error) { return k, nil })))
	},
	"stack of two": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(ratelimit.All(ratelimit.By(ample(), func(k string) (string, error) { return k, nil }),
			ratelimit.By(l, func(k string) (string, error) { return k, nil })))
	},
	"chain": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(chain.New[string](l))
	},
	"chain of two": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(chain.New[string](ample(), l))
	},
	"ban": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		many := ratelimit.FixedWindow(ratelimit.PerHour(1_000_000))
		return ratelimit.Must(ban.New[string](l, ratelimit.Must(ratelimit.New[string](many, nil)), ratelimit.Must(ratelimit.New[string](many, nil))))
	},
	"failover": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(failover.New[string](l, ratelimit.Must(ratelimit.New[string](ratelimit.Blocked(), nil)), nil))
	},
	"failover before a stack": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		stack := ratelimit.Must(ratelimit.All(ratelimit.By(ample(), func(k string) (string, error) { return k, nil }),
			ratelimit.By(l, func(k string) (string, error) { return k, nil })))
		return ratelimit.Must(failover.New(stack, failover.DenyAll[string](), nil))
	},
	"lease": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(lease.New(l, &lease.Options[string]{MaxBatch: 10}))
	},
}

// ample returns a limiter that delays no call.
func ample() *ratelimit.Keyed[string] {
	return ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10_000), 10_000), nil))
}

// Calls waiting for a limiter behind a wrapper follow each change of its limit.
func TestWaitsBehindWrappersFollowEachChange(t *testing.T) {
	for name, wrap := range wrappers {
		w := linetest.Way{New: func(_ *testing.T, limit ratelimit.Limit) (linetest.Budget, func(context.Context, int) error) {
			l := ratelimit.Must(ratelimit.New[string](limit, nil))
			behind := wrap(l)
			return l, func(ctx context.Context, cost int) error { return ratelimit.Wait(ctx, behind, "k", cost) }
		}}
		if name == "chain of two" { // a chain tries again each second
			w.Late = 2 * time.Second
		}
		t.Run(name, w.Test)
	}
}

// Waiting reservations follow each change, too.
func TestReservationsBehindWrappersFollowEachChange(t *testing.T) {
	for name, wrap := range wrappers {
		switch name {
		case "chain of two", "stack", "stack of two", "failover before a stack": // these do not book ahead
			continue
		}
		t.Run(name, linetest.Way{New: func(_ *testing.T, limit ratelimit.Limit) (linetest.Budget, func(context.Context, int) error) {
			l := ratelimit.Must(ratelimit.New[string](limit, nil))
			behind := wrap(l)
			return l, func(ctx context.Context, cost int) error {
				r, err := behind.Reserve(ctx, "k", cost, 200*time.Hour)
				if err != nil {
					return err
				}
				return r.Wait(ctx)
			}
		}}.Test)
	}
}

// Waiting tenants follow each change of their shared rate. A tenant alone leaves a part of the burst for others.
func TestWaitsOfTenantsFollowEachChange(t *testing.T) {
	linetest.Way{Kept: 2, New: func(_ *testing.T, limit ratelimit.Limit) (linetest.Budget, func(context.Context, int) error) {
		l := ratelimit.Must(fair.New[string](limit, nil))
		return l, func(ctx context.Context, cost int) error { return l.Wait(ctx, "k", cost) }
	}}.Test(t)
}

// A client's requests follow each change of its limiter, except requests at most 100 ms ahead of their turn.
func TestRequestsOfAClientFollowEachChange(t *testing.T) {
	for name, wrap := range wrappers {
		w := linetest.Way{Booked: 100 * time.Millisecond, New: func(t *testing.T, limit ratelimit.Limit) (linetest.Budget, func(context.Context, int) error) {
			l := ratelimit.Must(ratelimit.New[string](limit, nil))
			requests := ratelimit.Map[*http.Request, string](wrap(l), func(*http.Request) (string, error) { return "k", nil })
			client, err := httplimit.NewTransport(serves{}, requests, &httplimit.TransportOptions{MaxWait: -1})
			require.NoError(t, err)
			return l, func(ctx context.Context, cost int) error {
				r, err := http.NewRequestWithContext(httplimit.WithCost(ctx, cost), http.MethodGet, "http://a.test", nil)
				require.NoError(t, err)
				res, err := client.RoundTrip(r)
				if err != nil {
					return err
				}
				return res.Body.Close()
			}
		}}
		switch name {
		case "chain of two", "stack", "stack of two", "failover before a stack": // these book nothing, so a request tries again each second
			w.Late = 2 * time.Second
		}
		t.Run(name, w.Test)
	}
}

// serves is a server that answers each request at once.
type serves struct{}

func (serves) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}
