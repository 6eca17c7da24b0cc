package lease_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// undescribed hides the Describe method of a limiter whose reservations hold units.
type undescribed struct{ ratelimit.Reserver[string] }

func TestUnitsInUseAreReservedDirectly(t *testing.T) {
	for _, described := range []bool{true, false} {
		clock := new(ratelimittest.Clock)
		inner := model.Holding(t, clock)
		remote := ratelimit.Reserver[string](inner)
		if !described {
			remote = undescribed{inner}
		}
		l, err := lease.New(remote, &lease.Options[string]{MaxBatch: 3, Clock: clock})
		require.NoError(t, err)
		require.Equal(t, described, l.Describe().Holds)
		model.Extends(t, clock, l, inner)
		require.NoError(t, l.Flush(t.Context()))
	}
}
