package failover_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	play "github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestAReservationIsExtendedWhereItWasMade(t *testing.T) {
	for _, timeout := range []time.Duration{-1, time.Minute} {
		clock := new(ratelimittest.Clock)
		primary, standIn := play.Holding(t, clock), play.Holding(t, clock)
		f, err := failover.New(ratelimit.Reserver[string](primary), ratelimit.Reserver[string](standIn), &failover.Options{Timeout: timeout})
		require.NoError(t, err)
		require.True(t, f.Describe().Holds)
		play.Extends(t, clock, f, primary)

		failing := play.Fails(ratelimit.ErrUnavailable)
		f, err = failover.New(ratelimit.Reserver[string](failing), ratelimit.Reserver[string](standIn), &failover.Options{Timeout: timeout})
		require.NoError(t, err)
		play.Extends(t, clock, f, standIn)
	}
}

// deaf is a limiter whose Extend hangs until its context ends.
type deaf struct{ *ratelimit.Keyed[string] }

func (h deaf) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	r, err := h.Keyed.Reserve(ctx, key, cost, maxDelay)
	held.Extend(r, time.Minute, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	return r, err
}

func TestAnExtensionEndsAtTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := new(ratelimittest.Clock)
		primary := play.Holding(t, clock)
		f, err := failover.New(ratelimit.Reserver[string](deaf{primary}), ratelimit.Reserver[string](primary), &failover.Options{Timeout: 20 * time.Millisecond})
		require.NoError(t, err)
		r, err := f.Reserve(t.Context(), "k", 1, 0)
		require.NoError(t, err)
		err = r.Extend(t.Context())
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.NotErrorIs(t, err, ratelimit.ErrLost)
		ended, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, r.Extend(ended), context.Canceled)
		require.NoError(t, r.Cancel())
	})
}
