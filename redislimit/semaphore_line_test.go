package redislimit

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
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

// held takes n slots of the key.
func (f *fixture) held(s *Semaphore, n int) *Permit {
	f.t.Helper()
	p, err := s.TryAcquire(f.t.Context(), "k", n)
	require.NoError(f.t, err)
	return p
}

// inLine puts a request of another process into the line. That process makes no other call.
func (f *fixture) inLine(s *Semaphore, n int, how byte) *Permit {
	f.t.Helper()
	p := s.permit("k", n)
	state, err := p.take(f.t.Context(), s.limit.Load(), how)
	require.NoError(f.t, err)
	require.EqualValues(f.t, slotsWaiting, state)
	return p
}

// subscribed receives a process's messages, and does not react to them.
func (f *fixture) subscribed(s *Semaphore) <-chan *redis.Message {
	f.t.Helper()
	sub := f.client.SSubscribe(f.t.Context(), s.space.key("k")+"!"+s.process)
	f.t.Cleanup(func() { sub.Close() })
	_, err := sub.Receive(f.t.Context())
	require.NoError(f.t, err)
	return sub.Channel()
}

// sleeps is longer than the pause between two beats.
const sleeps = 20 * time.Second

func served(t *testing.T, got <-chan *Permit, what string) *Permit {
	t.Helper()
	select {
	case p := <-got:
		return p
	case <-time.After(sleeps):
		t.Fatal(what)
		return nil
	}
}

func TestAnUncontendedAcquireAndReleaseAreTwoRoundTrips(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(3)
	once := func(n int) {
		p, err := s.Acquire(t.Context(), "k", n)
		require.NoError(t, err)
		require.NoError(t, p.Release(t.Context()))
	}
	once(1)
	f.resetStats()
	for i := range 10 {
		once(1 + i%3)
	}
	stats := f.stats()
	assert.Equal(t, 20, stats["evalsha"])
	assert.Zero(t, stats["eval"]+stats["ssubscribe"]+stats["spublish"])
}

func TestAPermitOfManySlotsIsOneMember(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(maxSlots)
	f.held(s, maxSlots-1)
	f.held(s, 1)
	assert.Equal(t, SemaphoreStats{InFlight: maxSlots}, f.snapshot(s))
	assert.EqualValues(t, 3, f.client.ZCard(t.Context(), s.space.key("k")).Val(), "two permits and the summary")
}

func TestKilledWaitersArePassedByAtOnce(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(2)
	dead := f.semaphore(2)
	held := f.held(s, 2)
	for i := range 3 * maxGrants {
		f.inLine(dead, 1+i%2, howListen)
	}
	next := f.inLine(s, 2, howListen)
	require.NoError(t, held.Release(t.Context()))
	state, err := next.take(t.Context(), 2, howListen)
	require.NoError(t, err)
	assert.EqualValues(t, slotsTaken, state, "it was granted its slots by that release")
	assert.Equal(t, SemaphoreStats{InFlight: 2}, f.snapshot(s))
}

func TestAStoppedWaiterIsPassedByWhenItDoesNotClaim(t *testing.T) {
	f := newFixture(t)
	s, stopped := f.semaphore(1), f.semaphore(1)
	held := f.held(s, 1)
	messages := f.subscribed(stopped)
	behind := f.inLine(stopped, 1, howListen)
	f.inLine(stopped, 1, howListen) // with the first request, this one is skipped, too
	next := f.waiter(s, 1)
	f.clock.Advance(freshFor + time.Microsecond)
	require.NoError(t, held.Release(t.Context()))
	assert.Equal(t, "g", (<-messages).Payload[:1], "it has to claim the slot")
	assert.Equal(t, SemaphoreStats{InFlight: 1, Waiting: 2}, f.snapshot(s), "the slot is reserved")
	f.clock.Advance(s.silence - placeFor + claimFor)
	p := served(t, next, "the slot stays reserved")
	state, err := behind.take(t.Context(), 1, howListen)
	require.NoError(t, err)
	assert.EqualValues(t, slotsWaiting, state, "when it goes on it has its place again")
	require.NoError(t, p.Release(t.Context()))
	assert.Equal(t, "p", (<-messages).Payload[:1])
	assert.Equal(t, SemaphoreStats{InFlight: 1}, f.snapshot(s))
}

func TestAWaiterThatStopsRightAfterACallKeepsItsSlotsForHold(t *testing.T) {
	f := newFixture(t)
	s, stopped := f.semaphore(1), f.semaphore(1)
	held := f.held(s, 1)
	messages := f.subscribed(stopped)
	f.inLine(stopped, 1, howListen)
	next := f.waiter(s, 1)
	f.clock.Advance(freshFor)
	require.NoError(t, held.Release(t.Context()))
	assert.Equal(t, "p", (<-messages).Payload[:1])
	// A beat carries the test's time. If a beat was sent before the clock advanced and
	// arrives now, the clock seems to have stepped back, and the slot's end is bounded.
	f.clock.Advance(s.hold - 2*freshFor)
	assert.Equal(t, 1, f.snapshot(s).InFlight)
	f.clock.Advance(2 * freshFor)
	require.NoError(t, served(t, next, "the slot stays taken").Release(t.Context()))
}

func TestAWaiterHasTheSlotsOfADeadHolderAfterHold(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(2)
	f.held(s, 1)
	f.held(s, 1)
	next := f.waiter(s, 2)
	f.clock.Advance(s.hold - time.Microsecond)
	assert.Empty(t, next)
	f.clock.Advance(time.Microsecond)
	served(t, next, "the slots do not come back")
}

func TestAPatientHeadIsServedBeforeManyImpatientFollowers(t *testing.T) {
	f := newFixture(t)
	s, other := f.semaphore(3), f.semaphore(3)
	held := []*Permit{f.held(s, 1), f.held(s, 1), f.held(s, 1)}
	head := f.waiter(s, 3)
	ctx, stop := contextWithCancel(t)
	var followers sync.WaitGroup
	for i := range 30 {
		followers.Go(func() {
			for ctx.Err() == nil {
				short, cancel := context.WithTimeout(ctx, rand.N(5*time.Millisecond))
				p, err := []*Semaphore{s, other}[i%2].Acquire(short, "k", 1)
				cancel()
				if err == nil {
					assert.NoError(t, p.Release(t.Context()))
				}
			}
		})
	}
	for _, p := range held {
		time.Sleep(20 * time.Millisecond)
		assert.Empty(t, head)
		require.NoError(t, p.Release(t.Context()))
	}
	p := served(t, head, "the head is starved")
	stop()
	followers.Wait()
	require.NoError(t, p.Release(t.Context()))
	f.nothingStays(s)
}

// nothingStays waits until no slot is in use and no caller in line.
// Callers that have given up may still give slots back in the background.
func (f *fixture) nothingStays(s *Semaphore) {
	f.t.Helper()
	require.EventuallyWithT(f.t, func(t *assert.CollectT) {
		stats, err := s.Snapshot(f.t.Context(), "k")
		assert.NoError(t, err)
		assert.Zero(t, stats)
	}, sleeps, 5*time.Millisecond)
}

func TestALeaveThatRacesWithAGrantLeavesNothing(t *testing.T) {
	f := newFixture(t)
	all := []*Semaphore{f.semaphore(2), f.semaphore(2), f.semaphore(2)}
	var inFlight, done atomic.Int64
	var callers sync.WaitGroup
	for i := range 24 {
		callers.Go(func() {
			for range 60 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(8*time.Millisecond))
				n := 1 + i%2
				p, err := all[i%3].Acquire(ctx, "k", n)
				if err == nil {
					assert.LessOrEqual(t, inFlight.Add(int64(n)), int64(2))
					time.Sleep(rand.N(300 * time.Microsecond))
					inFlight.Add(-int64(n))
					assert.NoError(t, p.Release(ctx))
					done.Add(1)
				} else {
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				}
				cancel()
			}
		})
	}
	callers.Wait()
	assert.Positive(t, done.Load())
	f.nothingStays(all[0])
}

func TestAClockThatLeapsForAMomentKeepsNoDeadSlots(t *testing.T) {
	for _, leap := range []time.Duration{time.Hour, 10 * time.Second} { // one leap is shorter than Hold
		t.Run(leap.String(), func(t *testing.T) {
			f := newFixture(t)
			s, long := f.semaphore(4), f.semaphore(4)
			long.hold = 3 * time.Hour
			f.held(long, 1)
			f.clock.Advance(leap)
			f.held(s, 1) // the process that holds this slot dies
			f.inLine(f.semaphore(4), 3, howListen)
			revoked := s.permit("k", 1)
			revoked.unanswered.Store(true)
			require.ErrorIs(t, revoked.Release(t.Context()), ErrLost)
			f.clock.Advance(-leap)
			assert.Equal(t, 2, f.snapshot(s).InFlight)
			_, err := s.TryAcquire(t.Context(), "k", 1)
			require.ErrorIs(t, err, ratelimit.ErrLimited, "the line has not ended yet")
			f.clock.Advance(s.silence)
			p := f.held(s, 3-1)
			require.NoError(t, p.Release(t.Context()))
			f.clock.Advance(s.hold - s.silence - time.Microsecond)
			assert.Equal(t, 2, f.snapshot(s).InFlight, "no slot ends early")
			f.clock.Advance(time.Microsecond)
			assert.Equal(t, SemaphoreStats{InFlight: 1, Oldest: s.hold}, f.snapshot(s))
			p = f.held(s, 3)
			require.NoError(t, p.Release(t.Context()))
			kinds := map[byte]int{}
			for _, member := range f.client.ZRange(t.Context(), s.space.key("k"), 0, -1).Val() {
				kinds[member[0]]++
			}
			assert.Equal(t, map[byte]int{'p': 1, 'u': 1}, kinds, "nothing of the leap is left")
		})
	}
}

// During the leap the places and the slots end, and another caller gets
// the slots. Then the callers enter the line again, in their order.
func TestALineOutlivesAClockThatLeaps(t *testing.T) {
	f := newFixture(t)
	s, other, third := f.semaphore(1), f.semaphore(1), f.semaphore(1)
	f.held(s, 1)
	all := []<-chan *Permit{f.waiter(s, 1), f.waiter(other, 1), f.waiter(s, 1)}
	f.clock.Advance(time.Hour)
	p, err := third.TryAcquire(t.Context(), "k", 1)
	if err != nil { // a caller in line had the slot first
		require.ErrorIs(t, err, ratelimit.ErrLimited)
	}
	f.clock.Advance(-time.Hour)
	release := func(p *Permit) {
		if err := p.Release(t.Context()); err != nil { // a late call with the leap's time ended the slot again
			require.ErrorIs(t, err, ErrLost)
		}
	}
	if p != nil { // by then all are in line again, or one has the slot
		require.Eventually(t, func() bool { return f.snapshot(s).Waiting+len(all[0])+len(all[1])+len(all[2]) >= len(all) }, sleeps, time.Millisecond)
		release(p)
	}
	merged := make(chan *Permit)
	for _, got := range all { // callers returning to the line during the leap may have changed places
		go func() { merged <- <-got }()
	}
	for i := range all {
		release(served(t, merged, fmt.Sprint("caller ", i)))
	}
	f.nothingStays(s)
}

// The summary is missing after a script has failed midway.
func TestASemaphoreCountsAnewAfterAScriptThatFailedMidway(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(3)
	one, _ := f.held(s, 1), f.held(s, 1)
	few, err := NewSemaphore(f.restricted(slotCommands, "zadd"), 3, &SemaphoreOptions{Name: "slots", Timeout: 10 * time.Second})
	require.NoError(t, err)
	few.store.clock, few.store.grace = s.store.clock, s.store.grace
	one.of = few
	require.Error(t, one.Release(t.Context()))
	if summary, err := f.client.ZScore(t.Context(), s.space.key("k"), "u").Result(); assert.NoError(t, err) && summary != 0 {
		// a failing script leaves this state
		require.NoError(t, f.client.ZAdd(t.Context(), s.space.key("k"), redis.Z{Member: "u"}).Err())
	}
	_, err = s.TryAcquire(t.Context(), "k", 2)
	assert.ErrorIs(t, err, ratelimit.ErrLimited)
	f.held(s, 1)
	one.of = s
	require.NoError(t, one.Release(t.Context()))
	f.held(s, 1)
	assert.Equal(t, SemaphoreStats{InFlight: 3}, f.snapshot(s))
}

func TestProcessesOfDifferentHold(t *testing.T) {
	f := newFixture(t)
	short, long := f.semaphore(2), f.semaphore(2)
	short.hold, long.hold = time.Second, time.Hour
	a, b := f.held(short, 1), f.held(long, 1)
	f.clock.Advance(time.Second)
	assert.Equal(t, SemaphoreStats{InFlight: 1, Oldest: time.Second}, f.snapshot(short))
	assert.ErrorIs(t, a.Extend(t.Context()), ErrLost)
	f.clock.Advance(time.Hour - time.Second - time.Microsecond)
	require.NoError(t, b.Extend(t.Context()))
	f.clock.Advance(time.Hour - time.Microsecond)
	assert.Equal(t, 1, f.snapshot(short).InFlight)
	f.clock.Advance(time.Microsecond)
	assert.Zero(t, f.snapshot(short))
}

func TestOfDifferentLimitsTheLargestHolds(t *testing.T) {
	f := newFixture(t)
	small, large := f.semaphore(1), f.semaphore(3)
	a := f.held(small, 1)
	b := f.held(large, 2)
	_, err := small.TryAcquire(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrLimited)
	first, second := f.waiter(large, 3), f.waiter(small, 1)
	require.NoError(t, b.Release(t.Context()))
	assert.Empty(t, first)
	require.NoError(t, a.Release(t.Context())) // the small limit permits no grant, but the process with the large limit polls
	p := served(t, first, "it is not served by its own limit")
	require.NoError(t, p.Release(t.Context()))
	require.NoError(t, served(t, second, "it is not served").Release(t.Context()))
}

func TestALimitForThatFallsBelowAWaitersSlotsEndsItsWait(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(3)
	var own atomic.Int64
	own.Store(3)
	s.limitFor = func(string) int { return int(own.Load()) }
	f.held(s, 2)
	failed := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), "k", 3)
		failed <- err
	}()
	require.Eventually(t, func() bool { return f.snapshot(s).Waiting == 1 }, sleeps, time.Millisecond)
	behind := f.waiter(s, 1)
	own.Store(2)
	assert.ErrorIs(t, <-failed, ratelimit.ErrExceedsLimit)
	own.Store(3)
	require.NoError(t, served(t, behind, "the line is blocked").Release(t.Context()))
}

// A call that arrives after its caller has left takes nothing, even without a revocation.
func TestACallThatArrivesTooLateTakesNothing(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(1)
	p := s.permit("k", 1)
	state, err := p.takeBefore(t.Context(), 1, howListen, time.Now(), s.store.clock()-1)
	require.NoError(t, err)
	assert.EqualValues(t, slotsLate, state)
	assert.Empty(t, f.dump())
	f.held(s, 1)
}

func TestAServerClockThatStepsForwardRefusesNoCaller(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(2)
	s.store = s.store.within(5 * time.Second)
	f.held(s, 1)
	require.NotZero(t, s.leadOf(s.space.key("k")).Load())
	f.clock.Advance(20 * time.Second)
	f.held(s, 1)
	f.clock.Advance(-time.Hour)
	_, err := s.TryAcquire(t.Context(), "k", 1)
	assert.ErrorIs(t, err, ratelimit.ErrLimited)
}

func TestResetEndsPermitsAndPlacesButNotRevocations(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(2)
	held := f.held(s, 2)
	revoked := s.permit("k", 1)
	revoked.unanswered.Store(true)
	require.ErrorIs(t, revoked.Release(t.Context()), ErrLost)
	f.inLine(f.semaphore(2), 1, howPoll)
	first, second := f.waiter(s, 2), f.waiter(s, 1)
	require.NoError(t, s.Reset(t.Context(), "k"))
	assert.ErrorIs(t, held.Extend(t.Context()), ErrLost)
	var p *Permit
	select { // both enter the line again, in any order
	case p = <-first:
	case p = <-second:
		second = first
	case <-time.After(sleeps):
		t.Fatal("neither comes back")
	}
	_, err := revoked.take(t.Context(), 2, howTry)
	assert.ErrorIs(t, err, ErrLost)
	require.NoError(t, p.Release(t.Context()))
	require.NoError(t, served(t, second, "the other one does not come back").Release(t.Context()))
	require.ErrorIs(t, held.Release(t.Context()), ErrLost)
	assert.Zero(t, f.snapshot(s))
	require.NoError(t, s.Reset(t.Context(), "never seen"))
	s.limitFor = func(string) int { return -1 }
	assert.ErrorIs(t, s.Reset(t.Context(), "k"), ratelimit.ErrInvalidLimit)
}

// logged returns a logger, and a function returning the text written so far.
func logged() (*slog.Logger, func() string) {
	var mu sync.Mutex
	var b bytes.Buffer
	h := slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	}), nil)
	return slog.New(h), func() string {
		mu.Lock()
		defer mu.Unlock()
		return b.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// work makes callers of all the semaphores share one slot.
func work(t *testing.T, all []*Semaphore, callers, each int) {
	t.Helper()
	var inFlight atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range each {
				p, err := all[i%len(all)].Acquire(t.Context(), "k", 1)
				if !assert.NoError(t, err) {
					return
				}
				assert.LessOrEqual(t, inFlight.Add(1), int64(1))
				time.Sleep(time.Millisecond)
				inFlight.Add(-1)
				assert.NoError(t, p.Release(t.Context()))
			}
		})
	}
	wg.Wait()
}

func TestASemaphoreWithoutMessagesPollsAndLogsThatOnce(t *testing.T) {
	for name, rules := range map[string][]any{
		"no channel":        {"resetchannels"},
		"no SPUBLISH":       {"&*", "-spublish"},
		"no SSUBSCRIBE":     {"&*", "-ssubscribe"},
		"channels of other": {"resetchannels", "&other*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			require.NoError(t, f.client.Do(t.Context(), append([]any{"acl", "setuser", "mute", "reset", "on", ">secret", "~*", "+@all"}, rules...)...).Err())
			logger, text := logged()
			var all []*Semaphore
			for range 2 {
				client := redis.NewClient(&redis.Options{Addr: f.client.Options().Addr, Username: "mute", Password: "secret"})
				t.Cleanup(func() { client.Close() })
				s, err := NewSemaphore(client, 1, &SemaphoreOptions{Name: "mute", Timeout: 10 * time.Second, Logger: logger})
				require.NoError(t, err)
				all = append(all, s)
			}
			work(t, all, 6, 15)
			assert.Equal(t, 2, strings.Count(text(), "polls"), "once for each semaphore: %s", text())
			f.nothingStays(all[0])
		})
	}
}

func TestWaitersSurviveTheLossOfTheirMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	all := []*Semaphore{f.semaphore(1), f.semaphore(1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(t, all, 8, 60)
	}()
	killed := int64(0)
	for {
		select {
		case <-done:
			assert.Positive(t, killed)
			f.nothingStays(all[0])
			return
		case <-time.After(30 * time.Millisecond):
			n, err := f.client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Result()
			require.NoError(t, err)
			killed += n
		}
	}
}

func TestALostKeyLosesNoCaller(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	all := []*Semaphore{f.semaphore(2), f.semaphore(2)}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for range 25 {
				p, err := all[i%2].Acquire(t.Context(), "k", 1+i%2)
				if assert.NoError(t, err) {
					time.Sleep(time.Millisecond)
					if err := p.Release(t.Context()); err != nil {
						assert.ErrorIs(t, err, ErrLost)
					}
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for {
		select {
		case <-done:
			f.nothingStays(all[0])
			return
		case <-time.After(40 * time.Millisecond):
			require.NoError(t, f.client.FlushAll(t.Context()).Err())
		}
	}
}

func TestASemaphoreWithoutWaitersEndsItsConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.semaphore(1)
	connections := func() int {
		return strings.Count(f.client.Do(t.Context(), "client", "list", "type", "pubsub").String(), " laddr=")
	}
	held := f.held(s, 1)
	next := f.waiter(s, 1)
	require.Eventually(t, func() bool { return connections() == 1 }, sleeps, time.Millisecond)
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, served(t, next, "it is not served").Release(t.Context()))
	require.Eventually(t, func() bool { return connections() == 0 }, 3*sleeps, 50*time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Empty(t, s.lines)
	assert.Empty(t, s.subs.byKey)
	assert.Empty(t, s.subs.byChannel)
	assert.Empty(t, s.subs.connections)
	assert.False(t, s.releasing)
}

// A message that arrives after Hold grants no permit.
func TestAMessageThatIsLaterThanHoldIsNoPermit(t *testing.T) {
	s := &Semaphore{hold: time.Second}
	p := &Permit{of: s, request: strings.Repeat("r", slotRequestSize)}
	w := &waiter{p: p, wake: make(chan struct{}, 1)}
	l := &localLine{s: s, callers: map[string]*waiter{p.attempt(): w}, lead: inMicros(time.Hour)} // so all times are above zero
	message := func(kind byte, age time.Duration) string {
		return string(put7([]byte{kind}, inMicros(time.Since(began)-age)+l.lead)) + p.attempt()
	}
	l.message(message('p', 2*time.Second))
	assert.Equal(t, waiterEvent{again: true}, s.takeEvent(w))
	l.message(message('g', 0))
	assert.Equal(t, waiterEvent{again: true}, s.takeEvent(w))
	l.message("")
	assert.Zero(t, s.takeEvent(w))
	l.message(message('p', 0))
	assert.False(t, s.takeEvent(w).granted.IsZero())
}
