package failover_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// throughOutage makes decisions while the primary is down, and a few after its
// recovery. It returns how many units the primary has charged, and how many passed.
func throughOutage(t *testing.T, s *store, l *failover.Limiter[string], fault func(context.Context) error, long time.Duration, reserve bool) (used, passed int) {
	s.fail(fault)
	spend := func() {
		if !reserve {
			if take(t, l, 1).Allowed {
				passed++
			}
			return
		}
		res, err := l.Reserve(t.Context(), "k", 5, 0)
		require.NoError(t, err)
		if res.Allowed {
			passed++
			require.NoError(t, res.Settle(1))
		}
	}
	for began := time.Now(); time.Since(began) < long; time.Sleep(time.Second) {
		spend()
	}
	s.fail(nil)
	for range 3 {
		time.Sleep(2 * time.Second)
		spend()
	}
	synctest.Wait()
	d, err := s.Keyed.Peek(t.Context(), "k", 0)
	require.NoError(t, err)
	return d.Limit.Capacity() - d.Remaining + d.Debt, passed
}

// After an outage, the primary is charged with the units passed by its stand-in, as far as they still count.
func TestThePrimaryIsChargedWithAnOutage(t *testing.T) {
	day, minute := ratelimit.FixedWindow(ratelimit.PerDay(10_000)), ratelimit.SlidingLog(ratelimit.PerMinute(100))
	for _, c := range []struct {
		name    string
		limit   ratelimit.Limit
		instead func(t *testing.T) ratelimit.Reserver[string]
		reserve bool
		want    func(passed int) int
	}{
		{"a share of a day's limit", day, func(t *testing.T) ratelimit.Reserver[string] { return newLocal(t, failover.Share(day, 4)) }, false, func(n int) int { return n }},
		{"a share, with estimates", day, func(t *testing.T) ratelimit.Reserver[string] { return newLocal(t, failover.Share(day, 4)) }, true, func(n int) int { return n }},
		{"all of a day's limit", day, func(*testing.T) ratelimit.Reserver[string] { return failover.AllowAll[string]() }, false, func(n int) int { return n }},
		{"a share of a minute's limit", minute, func(t *testing.T) ratelimit.Reserver[string] { return newLocal(t, failover.Share(minute, 4)) }, false, func(int) int { return 25 + 3 }},
		{"all of a minute's limit", minute, func(*testing.T) ratelimit.Reserver[string] { return failover.AllowAll[string]() }, false, func(int) int { return 60 }},
		{"nothing", day, func(*testing.T) ratelimit.Reserver[string] { return failover.DenyAll[string]() }, false, func(n int) int { return n }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, c.limit)
				l := over(t, s, c.instead(t), failover.Options{})
				used, passed := throughOutage(t, s, l, down, 20*time.Minute, c.reserve)
				assert.InDelta(t, c.want(passed), used, 4)
				again, more := throughOutage(t, s, l, down, 20*time.Minute, c.reserve)
				assert.InDelta(t, c.want(passed+more), again, 4, "after another outage")
			})
		})
	}
}

// The primary may have charged a call that timed out. So the call is not charged again.
func TestACallThatMayBeChargedIsNotOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, ratelimit.FixedWindow(ratelimit.PerDay(10_000)))
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1_000_000})
		used, passed := throughOutage(t, s, l, func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil }, time.Minute, false)
		assert.Equal(t, passed, used)
		assert.Positive(t, l.Stats().Instead)
	})
}

// A second outage begins while the first is being repaid. The rest stays owed.
func TestARepaymentGoesOnAfterAnotherOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, ratelimit.FixedWindow(ratelimit.PerDay(10_000)))
		l := over(t, s, failover.AllowAll[string](), failover.Options{Timeout: -1})
		s.fail(down)
		for i := range 100 {
			require.True(t, l.Allow(fmt.Sprint(i), 7))
		}
		calls := 0
		s.fail(func(context.Context) error {
			if calls++; calls > 40 && calls <= 60 {
				return ratelimit.ErrUnavailable
			}
			return nil
		})
		for range 100 {
			time.Sleep(2 * time.Second)
			l.Allow("x", 0)
			synctest.Wait()
		}
		for i := range 100 {
			d, err := s.Keyed.Peek(t.Context(), fmt.Sprint(i), 0)
			require.NoError(t, err)
			assert.Equal(t, 9993, d.Remaining)
		}
	})
}

// A request is not a key: no two requests are equal, and keeping them would keep their memory.
func TestRequestsAreNotOwed(t *testing.T) {
	type request struct{ user string }
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, ratelimit.FixedWindow(ratelimit.PerDay(10_000)))
		key := func(r *request) (string, error) { return r.user, nil }
		l := ratelimit.Must(failover.New(ratelimit.Reserver[*request](ratelimit.Must(ratelimit.All(ratelimit.By(s.Keyed, key)))),
			failover.AllowAll[*request](), &failover.Options{Logger: silent}))
		l.Force(failover.StateOpen)
		require.True(t, l.Allow(&request{"k"}, 1))
		l.Force(failover.StateClosed)
		for range 3 {
			time.Sleep(2 * time.Second)
			require.True(t, l.Allow(&request{"k"}, 1))
		}
		synctest.Wait()
		d, err := s.Keyed.Peek(t.Context(), "k", 0)
		require.NoError(t, err)
		assert.Equal(t, 9997, d.Remaining)
	})
}
