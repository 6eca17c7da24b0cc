package redislimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestAKeyIsCarriedFromLimitToLimitAsInMemory(t *testing.T) {
	client, clock := startServer(t).client(), new(ratelimittest.Clock)
	clock.SetWall(time.UnixMicro(epoch))
	model.Carries(t, clock, testsize.Seed(1), testsize.Of(200, 3000), func(name string, limit ratelimit.Limit) model.Carried {
		l, err := New(client, limit, &Options{Name: name, Timeout: 10 * time.Second})
		require.NoError(t, err)
		return onClock(l, clock)
	})
}
