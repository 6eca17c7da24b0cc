package redislimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
	"github.com/weir-go/ratelimit/internal/outcome"
)

func TestReservationsThatWaitFollowTheirLimit(t *testing.T) {
	s := startServer(t)
	linetest.Opener(func(t *testing.T, limit ratelimit.Limit, limitFor func(string) ratelimit.Limit) linetest.Budget {
		l := newOn(t, s.client(), limit, limit.Name, Options{LimitFor: limitFor})
		warm(t, l)
		return l
	}).Booked(t)
}

func TestABookingOnRedisTakesThePlaceOfAnother(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	linetest.Mover(func(t *testing.T, limit ratelimit.Limit) (func(int, time.Duration, any) outcome.Made, func() ratelimit.Decision) {
		l := f.limiter(limit, limit.String())
		return func(cost int, ahead time.Duration, instead any) outcome.Made {
				made, err := l.book(t.Context(), new(request), "k", cost, ahead, instead)
				require.NoError(t, err)
				return made
			}, func() ratelimit.Decision {
				d, err := l.Peek(t.Context(), "k", 1)
				require.NoError(t, err)
				return d
			}
	}).Moves(t)
}

// A process that has died keeps its bookings. They block its keys for no longer than the process could book ahead.
func TestTheBookingsOfADeadProcessBarOthersUntilTheLastOfThem(t *testing.T) {
	f := newFixture(t)
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(10), 1)
	for _, raised := range []bool{false, true} {
		name := fmt.Sprint("dead-", raised)
		dead, other := f.limiter(limit, name), f.limiter(limit, name)
		linetest.Dead{Limiter: dead, Other: other, Advance: f.clock.Advance, Raised: raised}.Test(t)
	}
}
