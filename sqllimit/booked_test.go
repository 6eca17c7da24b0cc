package sqllimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/outcome"
)

func TestReservationsThatWaitOnADatabaseFollowTheirLimit(t *testing.T) {
	_, db := newFake(t, func() int64 { return time.Now().UnixMicro() })
	linetest.Opener(func(t *testing.T, limit ratelimit.Limit, limitFor func(string) ratelimit.Limit) linetest.Budget {
		return newLimiter(t, db, limit, &Options{Name: limit.Name, Timeout: time.Minute, LimitFor: limitFor})
	}).Booked(t)
}

func TestABookingInADatabaseTakesThePlaceOfAnother(t *testing.T) {
	linetest.Mover(func(t *testing.T, limit ratelimit.Limit) (func(int, time.Duration, any) outcome.Made, func() ratelimit.Decision) {
		_, db := newFake(t, newClock().now)
		l := newLimiter(t, db, limit, patient)
		return func(cost int, ahead time.Duration, instead any) outcome.Made {
				made, _, err := l.book(t.Context(), "k", cost, ahead, meter.Open, instead)
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
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(10), 1)
	for _, raised := range []bool{false, true} {
		clock := newClock()
		_, db := newFake(t, clock.now)
		dead, other := newLimiter(t, db, limit, patient), newLimiter(t, db, limit, patient)
		linetest.Dead{Limiter: dead, Other: other, Advance: clock.advance, Raised: raised}.Test(t)
	}
}
