package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// version is one of several versions of a program sharing a table. Each sets its own limit before it reserves.
type version struct {
	*ratelimit.Keyed[string]
	limit ratelimit.Limit
}

func (v *version) SetLimit(limit ratelimit.Limit) error {
	v.limit = limit
	return v.Keyed.SetLimit(limit)
}

func (v *version) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if err := v.Keyed.SetLimit(v.limit); err != nil {
		return nil, err
	}
	return v.Keyed.Reserve(ctx, key, cost, maxDelay)
}

// ofRequest is a layer whose limit comes with the request.
type ofRequest struct {
	*ratelimit.Layered[string]
	limit *ratelimit.Limit
}

func (p ofRequest) SetLimit(limit ratelimit.Limit) error {
	*p.limit = limit
	return nil
}

func TestOpenReservationsSurviveAMovingLimit(t *testing.T) {
	testsize.Arithmetic(t)
	for _, layered := range []bool{false, true} {
		clock, tables := new(ratelimittest.Clock), map[string]*ratelimit.Keyed[string]{}
		model.Moves(t, clock, func(name string, limit ratelimit.Limit) model.Flipped {
			if tables[name] == nil {
				tables[name] = newWith(t, limit, ratelimit.Options[string]{Clock: clock})
			}
			if !layered {
				return &version{tables[name], limit}
			}
			p := ofRequest{limit: &limit}
			stack, err := ratelimit.All(model.WithLimit(ratelimit.By(tables[name], func(k string) (string, error) { return k, nil }),
				func(string) ratelimit.Limit { return limit }))
			require.NoError(t, err)
			p.Layered = stack
			return p
		})
	}
}
