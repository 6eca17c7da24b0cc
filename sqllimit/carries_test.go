package sqllimit

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
	clock := new(ratelimittest.Clock)
	clock.SetWall(time.UnixMicro(1_750_000_000_000_000))
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	model.Carries(t, clock, testsize.Seed(1), testsize.Of(200, 3000), func(name string, limit ratelimit.Limit) model.Carried {
		l, err := New(db, limit, &Options{Name: name, Timeout: time.Minute})
		require.NoError(t, err)
		return l
	})
}
