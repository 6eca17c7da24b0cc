package redislimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/tentative"
)

// unitInTenSeconds is one unit in ten seconds.
var unitInTenSeconds = ratelimit.Rate{Units: 1, Per: 10 * time.Second}

// limitsOfTenSeconds are limits by algorithm. Under each, the second unit comes
// after ten seconds or more. A leaky bucket has its own tests: see queue_test.go.
var limitsOfTenSeconds = map[string]ratelimit.Limit{
	"token bucket":    ratelimit.TokenBucket(unitInTenSeconds, 1),
	"fixed window":    ratelimit.FixedWindow(unitInTenSeconds),
	"sliding log":     ratelimit.SlidingLog(unitInTenSeconds),
	"sliding counter": ratelimit.SlidingCounter(unitInTenSeconds),
	"calendar":        ratelimit.Calendar(1, ratelimit.Minute("UTC")),
}

// diesWaiting books like a Wait that is first in its line. Its process then sends no further beat.
func (l *Limiter) diesWaiting(t *testing.T, cost int) (d ratelimit.Decision, r *request) {
	t.Helper()
	p, err := l.planFor("k")
	require.NoError(t, err)
	r = &request{tentative: l.store.tentative.ID + "1234"}
	d, err = l.decideUnder(t.Context(), r, p, "k", cost, math.MaxInt64, opKeep)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.NotEmpty(t, r.record)
	_, err = pulse{l.store, l.space.begin + "%{beats}"}.Beat(l.store.tentative.ID, d.Delay)
	require.NoError(t, err)
	return d, r
}

// confirm confirms a process's booking, late.
func (l *Limiter) confirm(t *testing.T, r *request) bool {
	b, err := l.store.tentative.Begin(t.Context(), time.Second)
	require.NoError(t, err)
	l.keep(b, "k", r, time.Second)
	lasts, err := b.Confirm()
	require.NoError(t, err)
	return lasts
}

func TestTheBookingOfADeadProcessIsGivenBack(t *testing.T) {
	for name, limit := range limitsOfTenSeconds {
		t.Run(name, func(t *testing.T) {
			verdicts(t)
			f := newFixture(t)
			dead, other := f.limiter(limit, "x"), f.limiter(limit, "x")
			take := func() ratelimit.Decision {
				t.Helper()
				d, err := other.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				return d
			}
			require.True(t, dead.Allow("k", 1))
			before := take().RetryAfter
			d, r := dead.diesWaiting(t, 1)
			require.Equal(t, before, d.Delay)
			require.Greater(t, take().RetryAfter, before)
			f.clock.Advance(tentative.Holds - time.Microsecond)
			require.Greater(t, take().RetryAfter, before)
			f.clock.Advance(tentative.Every)
			assert.Equal(t, before-tentative.Holds-tentative.Every+time.Microsecond, take().RetryAfter)
			assert.False(t, dead.confirm(t, r))
		})
	}
}

// A booking is either confirmed or given back, whichever comes first.
func TestAConfirmedBookingIsNotGivenBack(t *testing.T) {
	for name, limit := range limitsOfTenSeconds {
		f := newFixture(t)
		slow, other := f.limiter(limit, "x"), f.limiter(limit, "x")
		require.True(t, slow.Allow("k", 1))
		_, r := slow.diesWaiting(t, 1)
		records, err := other.store.small(t.Context(), tentatively.look, recordsKey(r.keys[0]), "", time.Time{})
		require.NoError(t, err)
		require.Equal(t, r.record, records)
		require.True(t, slow.confirm(t, r), name)
		f.clock.Advance(2 * time.Second)
		before, err := other.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		p, err := other.planFor("k")
		require.NoError(t, err)
		was, err := other.store.giveBack(t.Context(), r.keys[0], p, r.record)
		require.NoError(t, err)
		require.False(t, was, name)
		after, err := other.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, before, after, name)
	}
}

// If an ACL forbids the commands for tentative bookings, a booking far ahead lasts at once, as in earlier versions.
func TestWithoutItsCommandsABookingLasts(t *testing.T) {
	f := newFixture(t)
	limit := ratelimit.TokenBucket(ratelimit.Rate{Units: 1, Per: 3 * time.Second}, 1)
	l, err := New(f.restricted(commands, ""), limit, &Options{Name: "few", Timeout: 10 * time.Second})
	require.NoError(t, err)
	begin := time.Now()
	require.NoError(t, l.Wait(t.Context(), "k", 1))
	require.NoError(t, l.Wait(t.Context(), "k", 1))
	assert.GreaterOrEqual(t, time.Since(begin), 3*time.Second)
	d, err := l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
}

// A stack, too, gives back a dead process's booking when the booking makes it deny.
func TestAStackGivesBackTheBookingOfADeadProcess(t *testing.T) {
	f := newFixture(t)
	limit := ratelimit.TokenBucket(unitInTenSeconds, 1)
	dead, other := f.limiter(limit, "x"), f.limiter(limit, "x")
	stack, err := ratelimit.All(ratelimit.By(other, identity), ratelimit.By(f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(100), 100), "wide"), identity))
	require.NoError(t, err)
	require.True(t, dead.Allow("k", 1))
	dead.diesWaiting(t, 1)
	f.clock.Advance(tentative.Holds)
	d, err := stack.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.False(t, d.Allowed)
	assert.Equal(t, 10*time.Second-tentative.Holds, d.RetryAfter)
	f.clock.Advance(d.RetryAfter)
	assert.True(t, stack.Allow("k", 1))
}

// losing is a hook that loses the answers of some calls on the way, after the server has run them.
type losing struct {
	slowly
	lost func(*command) bool
}

func (h losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	next = h.slowly.ProcessHook(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if c, script := cmd.(*command); script && err == nil && h.lost(c) {
			err = io.ErrUnexpectedEOF
			cmd.SetErr(err)
		}
		return err
	}
}

// runs reports whether a command runs a script.
func (c *command) runs(s *script) bool { return c.Args()[1] == s.shaArg || c.Args()[1] == s.textArg }

// onBubble opens limiters on a server. They use the synctest bubble's time.
func onBubble(t *testing.T, addr string, limit ratelimit.Limit) (open func(redis.Hook) *Limiter) {
	return func(hook redis.Hook) *Limiter {
		client := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = client.Close() })
		l, err := New(client, limit, &Options{Name: "b", Timeout: 10 * time.Second, Hooks: []redis.Hook{hook}})
		require.NoError(t, err)
		l.store.clock, l.store.grace = func() int64 { return time.Now().UnixMicro() }, outlive
		return l
	}
}

// nothingStays checks a key with one unit in ten seconds: it has spent one unit at an instant, and nothing else.
func (l *Limiter) nothingStays(t *testing.T, key string, spent time.Time) {
	t.Helper()
	d, err := l.Peek(t.Context(), key, 1)
	require.NoError(t, err)
	fits := spent.Add(10 * time.Second)
	if now := time.Now(); fits.Before(now) {
		fits = now
	}
	require.WithinDuration(t, fits, time.Now().Add(d.RetryAfter), 200*time.Millisecond)
	n, err := l.store.user.Exists(t.Context(), recordsKey(l.space.key(key)), l.space.begin+"%{beats}").Result()
	require.NoError(t, err)
	require.Zero(t, n, "records and beats")
}

// When a caller hangs up before a call, during one, or while it waits, nothing of its booking stays.
func TestACallerMayHangUpAtAnyStageOfABookingFarAhead(t *testing.T) {
	s := startServer(t)
	limit := ratelimit.TokenBucket(unitInTenSeconds, 1)
	stages := 0
	for _, lost := range []bool{false, true} { // whether the answers to bookings are lost
		synctest.Test(t, func(t *testing.T) {
			hook := losing{slowly(100 * time.Millisecond), func(c *command) bool { return lost && c.runs(tentatively.decide) }}
			open := onBubble(t, s.addr, limit)
			l, other := open(hook), open(slowly(0))
			for after := 50 * time.Millisecond; after < 10*time.Second; after += 50 * time.Millisecond {
				if after == time.Second {
					after = 9 * time.Second // by then the booking is confirmed
				}
				key := fmt.Sprint(lost, after)
				require.True(t, l.Allow(key, 1))
				spent := time.Now()
				ctx, leave := context.WithCancel(t.Context())
				time.AfterFunc(after, leave)
				err := l.Wait(ctx, key, 1)
				if lost && !errors.Is(err, context.Canceled) {
					require.ErrorIs(t, err, ratelimit.ErrUnanswered)
				} else {
					require.ErrorIs(t, err, context.Canceled)
				}
				require.LessOrEqual(t, time.Since(spent), after+400*time.Millisecond, "it confirms the booking, and gives it back")
				time.Sleep(time.Second)
				other.nothingStays(t, key, spent.Add(-100*time.Millisecond))
				stages++
			}
		})
	}
	require.Equal(t, 2*(19+20), stages)
}

// If a caller hangs up during its call, the next caller in line takes over the booking.
func TestTheNextCallerTakesABookingFarAhead(t *testing.T) {
	s := startServer(t)
	synctest.Test(t, func(t *testing.T) {
		l := onBubble(t, s.addr, ratelimit.TokenBucket(unitInTenSeconds, 1))(slowly(100 * time.Millisecond))
		require.True(t, l.Allow("k", 1))
		spent := time.Now()
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- l.Wait(ctx, "k", 1) }()
		time.Sleep(10 * time.Millisecond)
		second := make(chan error, 1)
		go func() { second <- l.Wait(t.Context(), "k", 1) }()
		time.Sleep(500 * time.Millisecond) // the calls for a near instant, the scripts and the beat are over, and the booking is under way
		leave()
		require.ErrorIs(t, <-first, context.Canceled)
		require.NoError(t, <-second)
		require.WithinDuration(t, spent.Add(10*time.Second), time.Now(), 100*time.Millisecond)
		time.Sleep(2 * time.Second)
	})
}

// standing is a hook that holds up every call until an instant.
type standing struct{ until *atomic.Pointer[time.Time] }

func (h standing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h standing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.stand(cmd)
		return next(ctx, cmd)
	}
}

func (h standing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.stand(cmds...)
		return next(ctx, cmds)
	}
}

// stand waits until the calls may pass. The server decides on them by the time of their arrival.
func (h standing) stand(cmds ...redis.Cmder) {
	until := h.until.Load()
	if until == nil || !until.After(time.Now()) {
		return
	}
	time.Sleep(time.Until(*until))
	now := time.Now().UnixMicro()
	for _, cmd := range cmds {
		if args := cmd.Args(); len(args) > 4 {
			if words := args[len(args)-4:]; words[2] == outlive {
				words[0], words[1] = now/1e6, now%1e6
			}
		}
	}
}

// If a process stands still for longer than the others wait for it, its booking is given back.
// It books again, behind the callers that came meanwhile. A booking confirmed before stays.
func TestAProcessThatStandsStillIsServedOnceAndNotTooEarly(t *testing.T) {
	s := startServer(t)
	for i, c := range []struct{ at, slow, other time.Duration }{
		{5 * time.Second, 20 * time.Second, 10 * time.Second},
		{8200 * time.Millisecond, 20 * time.Second, 10 * time.Second}, // when it is about to confirm the booking
		{9500 * time.Millisecond, 10 * time.Second, 20 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			key := fmt.Sprint("still", i)
			open, still := onBubble(t, s.addr, ratelimit.TokenBucket(unitInTenSeconds, 1)), standing{new(atomic.Pointer[time.Time])}
			slow, other := open(still), open(slowly(time.Millisecond))
			require.True(t, other.Allow(key, 1))
			begin := time.Now()
			wait := func(l *Limiter, served *time.Duration) {
				assert.NoError(t, l.Wait(t.Context(), key, 1))
				*served = time.Since(begin)
			}
			var all sync.WaitGroup
			var served [2]time.Duration
			all.Go(func() { wait(slow, &served[0]) })
			time.Sleep(c.at)
			until := begin.Add(c.at + 2*time.Second)
			still.until.Store(&until)
			time.Sleep(time.Second)
			all.Go(func() { wait(other, &served[1]) })
			all.Wait()
			assert.InDelta(t, c.slow, served[0], float64(100*time.Millisecond), i)
			assert.InDelta(t, c.other, served[1], float64(100*time.Millisecond), i)
			time.Sleep(2 * time.Second)
		})
	}
}
