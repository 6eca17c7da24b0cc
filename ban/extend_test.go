package ban_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestAReservationBehindBansIsExtended(t *testing.T) {
	clock := new(ratelimittest.Clock)
	inner := model.Holding(t, clock)
	many := func() *ratelimit.Keyed[string] {
		return model.OnClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(100)))
	}
	b, err := ban.New[string](inner, many(), many())
	require.NoError(t, err)
	require.True(t, b.Describe().Holds)
	model.Extends(t, clock, b, inner)
}
