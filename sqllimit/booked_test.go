package sqllimit

import (
	"testing"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
)

func TestReservationsThatWaitOnADatabaseFollowTheirLimit(t *testing.T) {
	_, db := newFake(t, func() int64 { return time.Now().UnixMicro() })
	linetest.Opener(func(t *testing.T, limit ratelimit.Limit, limitFor func(string) ratelimit.Limit) linetest.Budget {
		return newLimiter(t, db, limit, &Options{Name: limit.Name, Timeout: time.Minute, LimitFor: limitFor})
	}).Booked(t)
}

// A process that has died keeps what it has booked, and bars its keys for no longer than it could book ahead.
func TestTheBookingsOfADeadProcessBarOthersUntilTheLastOfThem(t *testing.T) {
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(10), 1)
	for _, raised := range []bool{false, true} {
		clock := newClock()
		_, db := newFake(t, clock.now)
		dead, other := newLimiter(t, db, limit, patient), newLimiter(t, db, limit, patient)
		linetest.Dead{Limiter: dead, Other: other, Advance: clock.advance, Raised: raised}.Test(t)
	}
}
