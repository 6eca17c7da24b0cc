package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// semaphore returns a semaphore on the test's clock.
func (f *fixture) semaphore(limit int) *Semaphore {
	s, err := NewSemaphore(f.client, limit, &SemaphoreOptions{Name: "slots", Timeout: 10 * time.Second})
	require.NoError(f.t, err)
	s.store.clock = func() int64 { return epoch + int64(f.clock.Now())/1000 }
	s.store.grace = outlive
	return s
}

func (f *fixture) snapshot(s *Semaphore) SemaphoreStats {
	f.t.Helper()
	stats, err := s.Snapshot(f.t.Context(), "k")
	require.NoError(f.t, err)
	return stats
}

func TestASemaphoreHoldsItsLimit(t *testing.T) {
	t.Parallel()
	clients := spreadClients(t)
	clients["plain"] = startServer(t).client()
	for kind, client := range clients {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const limit, callers = 5, 40
			var all []*Semaphore // of several processes
			for range 4 {
				s, err := NewSemaphore(client, limit, &SemaphoreOptions{Name: "held", Timeout: 10 * time.Second})
				require.NoError(t, err)
				all = append(all, s)
			}
			var inFlight [2]atomic.Int64
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					k, n := i%2, 1+i%limit
					for range 3 {
						permit, err := all[i%len(all)].Acquire(t.Context(), fmt.Sprint("k", k), n)
						if !assert.NoError(t, err) {
							return
						}
						assert.LessOrEqual(t, inFlight[k].Add(int64(n)), int64(limit))
						time.Sleep(rand.N(time.Millisecond))
						inFlight[k].Add(int64(-n))
						assert.NoError(t, permit.Release(t.Context()))
					}
				})
			}
			wg.Wait()
			for k := range inFlight {
				stats, err := all[0].Snapshot(t.Context(), fmt.Sprint("k", k))
				require.NoError(t, err)
				assert.Zero(t, stats)
				assert.Zero(t, client.Exists(t.Context(), all[0].space.key(fmt.Sprint("k", k))).Val(), "nothing stays behind")
			}
		})
	}
}

func TestTryAcquireTakesFreeSlotsOnly(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(3)
	two, err := s.TryAcquire(t.Context(), "k", 2)
	require.NoError(t, err)
	_, err = s.TryAcquire(t.Context(), "k", 2)
	assert.ErrorIs(t, err, ratelimit.ErrLimited)
	assert.NotErrorIs(t, err, ratelimit.ErrUnavailable)
	one, err := s.TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)
	_, err = s.TryAcquire(t.Context(), "k", 1)
	assert.ErrorIs(t, err, ratelimit.ErrLimited)
	other, err := s.TryAcquire(t.Context(), "other", 3)
	require.NoError(t, err, "each key has slots of its own")
	require.NoError(t, other.Release(t.Context()))
	f.clock.Advance(time.Second)
	assert.Equal(t, SemaphoreStats{InFlight: 3, Oldest: time.Second}, f.snapshot(s))
	require.NoError(t, two.Release(t.Context()))
	require.NoError(t, two.Release(t.Context()))
	assert.Equal(t, SemaphoreStats{InFlight: 1, Oldest: time.Second}, f.snapshot(s))
	require.NoError(t, one.Release(t.Context()))
	assert.Zero(t, f.snapshot(s))
	_, err = s.TryAcquire(t.Context(), "k", 4)
	assert.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	for _, n := range []int{0, -1} {
		_, err = s.Acquire(t.Context(), "k", n)
		assert.ErrorContains(t, err, fmt.Sprint(n))
	}
}

func TestSlotsEndByThemselves(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(3)
	old, err := s.TryAcquire(t.Context(), "k", 3)
	require.NoError(t, err)
	f.clock.Advance(20 * time.Second)
	require.NoError(t, old.Extend(t.Context()))
	f.clock.Advance(30*time.Second - time.Microsecond)
	_, err = s.TryAcquire(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrLimited, "Extend has begun Hold anew")
	f.clock.Advance(time.Microsecond)
	assert.Zero(t, f.snapshot(s))
	fresh, err := s.TryAcquire(t.Context(), "k", 2)
	require.NoError(t, err)
	assert.ErrorIs(t, old.Extend(t.Context()), ErrLost)
	require.ErrorIs(t, old.Release(t.Context()), ErrLost)
	assert.Equal(t, SemaphoreStats{InFlight: 2}, f.snapshot(s), "what is released late is nobody else's")
	require.NoError(t, fresh.Extend(t.Context()))
	require.NoError(t, fresh.Release(t.Context()))
	assert.ErrorIs(t, fresh.Extend(t.Context()), ErrLost)
	assert.Zero(t, f.snapshot(s))
}

func TestAClockThatStepsBackGrantsNoSlots(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(1)
	f.clock.Advance(time.Hour)
	_, err := s.TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)
	f.clock.Set(0)
	_, err = s.TryAcquire(t.Context(), "k", 1)
	assert.ErrorIs(t, err, ratelimit.ErrLimited)
	assert.Equal(t, SemaphoreStats{InFlight: 1}, f.snapshot(s))
}

// waiter requests n slots, and sends the permit once it has them.
func (f *fixture) waiter(s *Semaphore, n int) <-chan *Permit {
	before, got := f.snapshot(s).Waiting, make(chan *Permit, 1)
	go func() {
		p, err := s.Acquire(f.t.Context(), "k", n)
		assert.NoError(f.t, err)
		got <- p
	}()
	require.Eventually(f.t, func() bool { return f.snapshot(s).Waiting == before+1 }, 20*time.Second, time.Millisecond)
	return got
}

func TestTheLineIsServedInOrder(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(3)
	var held []*Permit
	for range 3 {
		p, err := s.TryAcquire(t.Context(), "k", 1)
		require.NoError(t, err)
		held = append(held, p)
	}
	large, small, last := f.waiter(s, 3), f.waiter(s, 1), f.waiter(s, 2)
	for i, p := range held {
		require.NoError(t, p.Release(t.Context()))
		if i < 2 {
			_, err := s.TryAcquire(t.Context(), "k", 1)
			require.ErrorIs(t, err, ratelimit.ErrLimited, "a free slot is kept for the first in line")
		}
	}
	first := <-large
	assert.Empty(t, small)
	assert.Empty(t, last)
	require.NoError(t, first.Release(t.Context()))
	second, third := <-small, <-last
	assert.Equal(t, SemaphoreStats{InFlight: 3}, f.snapshot(s))
	require.NoError(t, second.Release(t.Context()))
	require.NoError(t, third.Release(t.Context()))
}

func TestACallerThatDiesLosesItsPlace(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(2)
	dead := f.semaphore(2).permit("k", 2)
	held, err := s.TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)
	state, err := dead.take(t.Context(), 2, howPoll)
	require.NoError(t, err)
	assert.EqualValues(t, slotsWaiting, state)
	_, err = s.TryAcquire(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrLimited)
	f.clock.Advance(s.silence)
	assert.Equal(t, SemaphoreStats{InFlight: 1, Oldest: s.silence}, f.snapshot(s))
	_, err = s.TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)
	require.NoError(t, held.Release(t.Context()))
}

// A call without an answer may have taken the slots. The next call finds them.
func TestACallThatIsRepeatedTakesItsSlotsOnce(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(3)
	p := s.permit("k", 2)
	for range 3 {
		state, err := p.take(t.Context(), 3, howPoll)
		require.NoError(t, err)
		assert.EqualValues(t, slotsTaken, state)
	}
	assert.Equal(t, SemaphoreStats{InFlight: 2}, f.snapshot(s))
	require.NoError(t, p.Release(t.Context()))
	assert.Zero(t, f.snapshot(s))
	assert.Len(t, p.request, slotRequestSize+len(thisProcess()))
}

func TestAnAcquireThatEndsLeavesNothing(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(1)
	held, err := s.TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)
	ctx, cancel := contextWithCancel(t)
	errs := make(chan error, 50)
	for range cap(errs) {
		go func() {
			_, err := s.Acquire(ctx, "k", 1)
			errs <- err
		}()
	}
	require.Eventually(t, func() bool { // if a call has no answer yet, Redis would note that it may still arrive
		s.mu.Lock()
		defer s.mu.Unlock()
		l := s.lines["k"]
		return l != nil && len(l.order) == cap(errs)
	}, 20*time.Second, time.Millisecond)
	assert.Equal(t, cap(errs), f.snapshot(s).Waiting)
	cancel()
	for range cap(errs) {
		err := <-errs
		assert.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, ratelimit.ErrUnavailable)
	}
	assert.Equal(t, SemaphoreStats{InFlight: 1}, f.snapshot(s))
	_, err = s.Acquire(ctx, "k", 1)
	assert.ErrorIs(t, err, context.Canceled)
	require.NoError(t, held.Release(ctx), "an ended context does not keep the slots")
	assert.Zero(t, f.snapshot(s))
	assert.Empty(t, f.dump())
}

func TestLimitsOfKeysAndChangedLimitsOfASemaphoreHold(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(1)
	s.limitFor = func(key string) int {
		switch key {
		case "large":
			return 5
		case "invalid":
			return -1
		}
		return 0
	}
	_, err := s.TryAcquire(t.Context(), "large", 5)
	require.NoError(t, err)
	_, err = s.TryAcquire(t.Context(), "invalid", 1)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = s.TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)
	waiting := f.waiter(s, 1)
	require.NoError(t, s.SetLimit(4))
	second := <-waiting
	require.NoError(t, second.Release(t.Context()))
	failed := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), "k", 4)
		failed <- err
	}()
	require.Eventually(t, func() bool { return f.snapshot(s).Waiting == 1 }, 20*time.Second, time.Millisecond)
	for _, limit := range []int{0, -1, maxSlots + 1} {
		assert.ErrorIs(t, s.SetLimit(limit), ratelimit.ErrInvalidLimit)
	}
	require.NoError(t, s.SetLimit(2))
	assert.ErrorIs(t, <-failed, ratelimit.ErrExceedsLimit)
	assert.Equal(t, SemaphoreStats{InFlight: 1}, f.snapshot(s))
}

func TestASemaphoreNamesTheFault(t *testing.T) {
	f := newFixture(t)
	var none *redis.Client
	for _, c := range []struct {
		client redis.UniversalClient
		limit  int
		o      *SemaphoreOptions
		want   string
	}{
		{none, 1, &SemaphoreOptions{Name: "a"}, "client"},
		{f.client, 1, nil, "Name"},
		{f.client, 1, &SemaphoreOptions{Name: "a{"}, "braces"},
		{f.client, 1, &SemaphoreOptions{Name: "a", Prefix: "}"}, "braces"},
		{f.client, 0, &SemaphoreOptions{Name: "a"}, "0"},
		{f.client, maxSlots + 1, &SemaphoreOptions{Name: "a"}, "10001"},
		{f.client, 1, &SemaphoreOptions{Name: "a", Hold: -time.Second}, "-1s"},
		{f.client, 1, &SemaphoreOptions{Name: "a", Hold: time.Microsecond}, "1µs"},
		{f.client, 1, &SemaphoreOptions{Name: "a", Hold: 1<<63 - 1}, "Hold"},
		{f.client, 1, &SemaphoreOptions{Name: "a", Owner: strings.Repeat("o", maxOwner+1)}, "Owner has 101 bytes"},
		{f.client, 1, &SemaphoreOptions{Name: "a", Total: -1}, "SemaphoreOptions.Total is -1"},
		{f.client, 1, &SemaphoreOptions{Name: "a", Total: maxSlots + 1}, "SemaphoreOptions.Total is 10001"},
	} {
		_, err := NewSemaphore(c.client, c.limit, c.o)
		assert.ErrorContains(t, err, c.want)
	}
	assert.Panics(t, func() { _, _ = new(Semaphore).TryAcquire(t.Context(), "k", 1) })
	var permit *Permit
	assert.NoError(t, permit.Release(t.Context()))
	assert.ErrorIs(t, permit.Extend(t.Context()), ErrLost)
	s := f.semaphore(1)
	for _, key := range []string{"", "{", "}", "a}b", strings.Repeat("l", 1000)} {
		p, err := s.TryAcquire(t.Context(), key, 1)
		require.NoError(t, err, key)
		_, err = s.TryAcquire(t.Context(), key, 1)
		require.ErrorIs(t, err, ratelimit.ErrLimited, key)
		require.NoError(t, p.Release(t.Context()))
	}
	require.NoError(t, f.client.Set(t.Context(), s.space.key("k"), "x", 0).Err())
	_, err := s.TryAcquire(t.Context(), "k", 1)
	assert.ErrorIs(t, err, errForeignState)
	assert.NotErrorIs(t, err, ratelimit.ErrUnavailable)
}

func TestASemaphoreWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s, err := NewSemaphore(server.client(), 1, &SemaphoreOptions{Name: "slots", Timeout: 50 * time.Millisecond, Hold: time.Minute})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := s.TryAcquire(t.Context(), "k", 1)
		return err == nil || errors.Is(err, ratelimit.ErrLimited) // refused by a late call
	}, 20*time.Second, time.Millisecond)
	server.pause(t)
	_, err = s.TryAcquire(t.Context(), "k", 1)
	assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.ErrorIs(t, promptly(t, func() error { _, err := s.Acquire(t.Context(), "k", 1); return err }), ratelimit.ErrUnavailable)
	server.resume(t)
	require.Eventually(t, func() bool { // by then the late calls have arrived
		stats, err := s.Snapshot(t.Context(), "k")
		return err == nil && stats.InFlight == 1 && stats.Waiting == 0
	}, 20*time.Second, time.Millisecond)

	waiting := make(chan error, 1)
	wait := func() {
		_, err := s.Acquire(t.Context(), "k", 1)
		waiting <- err
	}
	go wait()
	require.Eventually(t, func() bool {
		select {
		case err := <-waiting: // its first call had no answer in time
			assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
			go wait()
		default:
		}
		stats, err := s.Snapshot(t.Context(), "k")
		return err == nil && stats.Waiting == 1
	}, 20*time.Second, time.Millisecond)
	server.kill()
	assert.ErrorIs(t, <-waiting, ratelimit.ErrUnavailable, "it gives up after a while")
}

// A call that arrives after its own release takes nothing.
func TestACallThatComesAfterItsReleaseTakesNothing(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(1)
	p := s.permit("k", 1)
	p.unanswered.Store(true) // as after a call without an answer
	require.ErrorIs(t, p.Release(t.Context()), ErrLost)
	for _, how := range []byte{howTry, howPoll, howListen} {
		_, err := p.take(t.Context(), 1, how)
		assert.ErrorIs(t, err, ErrLost)
	}
	assert.Zero(t, f.snapshot(s))
	f.clock.Advance(revokedFor)
	_, err := s.TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)
}

// If a key is lost, for example in a failover, its line is formed again.
func TestALostLineComesBack(t *testing.T) {
	f := newFixture(t)
	s, other := f.semaphore(1), f.semaphore(1)
	held, err := s.TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)
	var all sync.WaitGroup
	for i := range 4 {
		got := f.waiter([]*Semaphore{s, other}[i%2], 1)
		all.Go(func() { assert.NoError(t, (<-got).Release(t.Context())) })
	}
	require.NoError(t, s.Reset(t.Context(), "k"))
	all.Wait()
	require.ErrorIs(t, held.Release(t.Context()), ErrLost)
	assert.Zero(t, f.snapshot(s))
}

// Callers of two processes wait in one line. Each served caller gives its slot to the line's next caller, in either process.
func TestALineOfTwoProcessesIsServedInOrder(t *testing.T) {
	f := newFixture(t)
	both := []*Semaphore{f.semaphore(1), f.semaphore(1)}
	held, err := both[0].TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)
	var all []<-chan *Permit
	for i := range 6 {
		all = append(all, f.waiter(both[i/2%2], 1))
	}
	begin := time.Now()
	for i, got := range all {
		require.NoError(t, held.Release(t.Context()))
		held = <-got
		for _, later := range all[i+1:] {
			assert.Empty(t, later)
		}
	}
	t.Log(time.Since(begin))
	require.NoError(t, held.Release(t.Context()))
}
