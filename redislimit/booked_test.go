package redislimit

import (
	"fmt"
	"testing"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
)

func TestReservationsThatWaitFollowTheirLimit(t *testing.T) {
	s := startServer(t)
	linetest.Opener(func(t *testing.T, limit ratelimit.Limit, limitFor func(string) ratelimit.Limit) linetest.Budget {
		l := newOn(t, s.client(), limit, limit.Name, Options{LimitFor: limitFor})
		warm(t, l)
		return l
	}).Booked(t)
}

// A process that has died keeps what it has booked, and bars its keys for no longer than it could book ahead.
func TestTheBookingsOfADeadProcessBarOthersUntilTheLastOfThem(t *testing.T) {
	f := newFixture(t)
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(10), 1)
	for _, raised := range []bool{false, true} {
		name := fmt.Sprint("dead-", raised)
		dead, other := f.limiter(limit, name), f.limiter(limit, name)
		linetest.Dead{Limiter: dead, Other: other, Advance: f.clock.Advance, Raised: raised}.Test(t)
	}
}
