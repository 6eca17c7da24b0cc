package chain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestAReservationOfAChainIsExtended(t *testing.T) {
	for _, first := range []bool{true, false} {
		clock := new(ratelimittest.Clock)
		streams := model.Holding(t, clock)
		tokens := model.OnClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(100), 1000))
		limiters := []ratelimit.Reserver[string]{streams, tokens}
		if !first {
			limiters = []ratelimit.Reserver[string]{tokens, streams}
		}
		c, err := chain.New(limiters...)
		require.NoError(t, err)
		require.True(t, c.Describe().Holds)
		model.Extends(t, clock, c, streams)
		bare := struct{ ratelimit.Reserver[string] }{c} // without a Wait of its own
		model.Extends(t, clock, bare, streams)
	}
}
