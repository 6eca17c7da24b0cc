package linetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Process is one process's limiter. Its budgets are in a store shared with other processes.
type Process interface {
	Budget
	ratelimit.Waiter[string]
	ratelimit.Peeker[string]
}

// Bubble is a store of budgets in a bubble of package synctest. The store uses the bubble's time.
type Bubble struct {
	// Open is called in the bubble. It returns a function that makes processes
	// with a common, empty budget. Each call to the store takes the given time.
	Open func(t *testing.T, takes time.Duration) (process func(limit ratelimit.Limit) Process)

	Calls int // the maximum number of calls to the store for one decision
}

// randomLimits are the limits of random histories, by algorithm. A history
// mostly changes one limit's figures, and sometimes takes another one.
func randomLimits() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(3), 5), ratelimit.TokenBucket(ratelimit.Per(7, 4*time.Second), 4), ratelimit.TokenBucket(ratelimit.PerMinute(100), 20),
		ratelimit.LeakyBucket(ratelimit.PerSecond(4), 2000), ratelimit.FixedWindow(ratelimit.PerSecond(4)), ratelimit.FixedWindow(ratelimit.PerMinute(12)),
		ratelimit.SlidingLog(ratelimit.PerSecond(4)), ratelimit.SlidingLog(ratelimit.PerMinute(12)), ratelimit.SlidingCounter(ratelimit.PerSecond(5)),
		ratelimit.SlidingCounter(ratelimit.Per(8, 4*time.Second)), ratelimit.Calendar(6, ratelimit.Minute("Asia/Kolkata")),
	}
}

// history is one random history. A store's processes and a limiter in memory play it at the
// same time, with the same calls at the same instants. They may serve waiting calls of
// several processes in a different order, so only the sums of the served units are compared.
type history struct {
	*testing.T
	rng     *rand.Rand
	begin   time.Time
	takes   time.Duration // the maximum duration of a store's decision
	limit   ratelimit.Limit
	memory  *ratelimit.Keyed[string]
	fleet   []Process
	waiters []*waiter
	open    []pair
	log     []string
	taken   []taking

	mu sync.Mutex // guards waiters' results, and the sums

	// since the last fresh start
	inMemory, inStore sum
	late              time.Duration // how much later the store may serve
	early             int           // how many units the store may be ahead
}

// sum holds the served units, and when they were served.
type sum struct {
	at    []time.Time
	units []int
}

func (s *sum) add(at time.Time, units int) {
	i, _ := slices.BinarySearchFunc(s.at, at, func(a, b time.Time) int {
		if a.After(b) {
			return 1
		}
		return -1
	})
	s.at, s.units = slices.Insert(s.at, i, at), slices.Insert(s.units, i, units)
}

// by returns the units served up to an instant.
func (s *sum) by(at time.Time) (n int) {
	for i, u := range s.units {
		if !s.at[i].After(at) {
			n += u
		}
	}
	return n
}

// waiter is a call waiting both in memory and in the store.
type waiter struct {
	process, cost int
	came          time.Time
	leave         context.CancelFunc
	gone          bool // whether its context was cancelled
	memory, store result
}

// taking records that a call has taken units from the store.
type taking struct {
	process int
	at      time.Time
}

type result struct {
	at  time.Time // zero while the call waits
	err error
}

// pair is one reservation, open both in memory and in the store.
type pair struct {
	memory, store *ratelimit.Reservation
	cost          int
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf("%v ", time.Since(h.begin))+fmt.Sprintf(format, args...))
}

func (h *history) fail(format string, args ...any) {
	h.Helper()
	h.Fatalf("%s\nafter\n%s", fmt.Sprintf(format, args...), strings.Join(h.log, "\n"))
}

// Random plays random histories of calls. The calls wait, leave, reserve and settle while the limit changes. Each
// history runs on one to three processes of a store, and in memory. The store must serve one process's callers in
// memory's order. It must serve as much as memory by the same instant. In the end the store must be empty.
func (s Bubble) Random(t *testing.T, rounds uint64) {
	for i, limit := range randomLimits() {
		for seed := range rounds {
			ok := t.Run(fmt.Sprintf("%v/%d", limit, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { s.play(t, limit, uint64(i)<<32|seed) })
			})
			if !ok {
				return
			}
		}
	}
}

func (s Bubble) play(t *testing.T, limit ratelimit.Limit, seed uint64) {
	rng := rand.New(rand.NewPCG(testsize.Seed(seed), 68))
	takes := []time.Duration{0, time.Millisecond, 10 * time.Millisecond}[rng.IntN(3)]
	h := &history{T: t, rng: rng, begin: time.Now(), takes: time.Duration(s.Calls) * takes, limit: limit, memory: ratelimit.Must(ratelimit.New[string](limit, nil))}
	process := s.Open(t, takes)
	for range 1 + rng.IntN(3) {
		h.fleet = append(h.fleet, process(limit))
	}
	h.note("%d processes, %v for a call", len(h.fleet), takes)
	h.fresh()
	defer func() {
		for _, w := range h.waiters {
			w.leave()
		}
		time.Sleep(time.Minute) // until the last bookings were given back
	}()
	for range 60 {
		h.step()
		h.agree()
		span := h.limit.RefillTime() / time.Duration(max(1, h.limit.Capacity()))
		spans := []time.Duration{0, 0, time.Millisecond, span / 3, span, 2 * span, time.Duration(rng.Int64N(int64(6 * span)))}
		time.Sleep(spans[rng.IntN(len(spans))].Round(time.Millisecond))
		h.agree()
	}
	h.quiet()
}

// fresh restarts the sums. No call waits then, and nothing is spent.
func (h *history) fresh() {
	h.inMemory, h.inStore = sum{}, sum{}
	h.early = 0
	h.late = time.Second + 8*h.takes + 10*time.Millisecond
	if len(h.fleet) > 1 { // one process may serve a small cost while another waits for a large one
		h.early = h.most()
	}
	// a call at a window's end may count in that window in the store, and in the next one in memory
	if windows := h.limit.Burst == 0; windows && h.takes > 0 {
		h.early = max(h.early, h.most())
	}
	h.open = nil
}

// most returns the largest cost.
func (h *history) most() int { return min(h.limit.Capacity(), 4) }

// cost returns a random cost. If several processes fill a window in
// their turns' order, only costs of 1 fill it equally in any order.
func (h *history) cost() int {
	if windows := h.limit.Burst == 0; windows && len(h.fleet) > 1 {
		return 1
	}
	return 1 + h.rng.IntN(h.most())
}

// agree compares the served units.
func (h *history) agree() {
	h.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	last := make([]*waiter, len(h.fleet))
	now := time.Now()
	for _, w := range h.waiters {
		for where, r := range map[string]result{"memory": w.memory, "the store": w.store} {
			if r.err != nil && !w.gone {
				h.fail("a call of process %d of cost %d failed in %s: %v", w.process, w.cost, where, r.err)
			}
		}
		if w.gone || w.store.at.IsZero() {
			continue
		}
		if p := last[w.process]; p != nil && p.store.at.Sub(w.store.at) > h.swap(p, w) && w.came.Sub(p.came) > h.takes && !h.contended(w) {
			h.fail("process %d served the cost of %d at %v, after one that came later, at %v", w.process, p.cost, p.store.at.Sub(h.begin), w.store.at.Sub(h.begin))
		}
		if p := last[w.process]; p == nil || w.store.at.After(p.store.at) {
			last[w.process] = w
		}
	}
	for _, at := range h.inMemory.at {
		by := at.Add(h.late)
		if by.After(now) {
			break
		}
		if least, got := h.inMemory.by(at)-h.early, h.inStore.by(by); got < least {
			h.fail("the store served %d units by %v, and memory %d by %v", got, by.Sub(h.begin), h.inMemory.by(at), at.Sub(h.begin))
		}
	}
	for _, at := range h.inStore.at {
		if at.After(now) {
			break
		}
		if most, got := h.inMemory.by(at)+h.early, h.inStore.by(at); got > most {
			h.fail("the store served %d units by %v, and memory %d", got, at.Sub(h.begin), h.inMemory.by(at))
		}
	}
}

// waits reports whether any call waits.
func (h *history) waits() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.waiters, func(w *waiter) bool { return w.memory.at.IsZero() || w.store.at.IsZero() })
}

// swap returns how much earlier the store may serve the second of two
// calls of a process. The process may call the store for both at once.
func (h *history) swap(first, second *waiter) time.Duration {
	most := 5*time.Millisecond + 4*h.takes
	if h.limit.Burst > 0 && first.cost == second.cost {
		most = max(most, 3*time.Duration(first.cost)*h.limit.Rate.Per/time.Duration(h.limit.Rate.Units))
	}
	return most
}

// contended reports whether another call has taken a window's units just before a call was served. The other call is
// another process's, or does not wait. A process lets as many callers call the store at once as the last answer had room
// for. If less room is left by then, the store serves the first calls to arrive, and the others wait for the next window.
func (h *history) contended(w *waiter) bool {
	windows := h.limit.Burst == 0
	return windows && slices.ContainsFunc(h.taken, func(t taking) bool {
		ago := w.store.at.Sub(t.at)
		return t.process != w.process && -h.takes <= ago && ago <= 3*h.takes
	})
}

func (h *history) step() {
	ctx, cost := context.Background(), h.cost()
	i := h.rng.IntN(len(h.fleet))
	p := h.fleet[i]
	switch h.rng.IntN(16) {
	case 0, 1, 2, 3, 4:
		h.comes(i, cost)
	case 5:
		h.leaves()
	case 6, 7:
		h.reserves(p, cost)
	case 8, 9:
		h.settles()
	case 10:
		delta := h.rng.IntN(2*h.limit.Capacity()) - h.limit.Capacity()
		delta = max(min(delta, 8), -8)
		h.note("Adjust(%d) by process %d", delta, i)
		if delta < 0 {
			if h.waits() { // a grant above the spending also forgives booked costs, but the store serves their callers nevertheless
				h.early -= delta
			}
			h.improved()
		} else {
			h.worse()
			h.take()
		}
		require.NoError(h, h.memory.Adjust(ctx, "k", delta))
		require.NoError(h, p.Adjust(ctx, "k", delta))
	case 11, 12:
		next := h.limit
		next.Rate.Units = 1 + h.rng.IntN(2*next.Rate.Units)
		if next.Capacity() < h.most() && next.Burst == 0 {
			return
		}
		h.note("SetLimit(%v)", next)
		h.worse()
		h.set(next)
		h.limit = next
	case 13:
		h.ends(ratelimit.Blocked(), ratelimit.ErrBlocked)
	case 14:
		h.ends(ratelimit.Unlimited(), nil)
	case 15:
		h.note("Reset by process %d", i)
		h.improved()
		h.worse()
		require.NoError(h, h.memory.Reset(ctx, "k"))
		require.NoError(h, p.Reset(ctx, "k"))
		h.open = nil
	}
}

// set changes all processes' limit.
func (h *history) set(limit ratelimit.Limit) {
	require.NoError(h, h.memory.SetLimit(limit))
	for _, p := range h.fleet {
		require.NoError(h, p.SetLimit(limit))
	}
}

// comes adds a waiting call.
func (h *history) comes(process, cost int) {
	h.note("Wait(%d) by process %d", cost, process)
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiter{process: process, cost: cost, came: time.Now(), leave: cancel}
	for _, o := range h.waiters {
		if o.process == process && o.cost != cost && w.came.Sub(o.came) <= h.takes {
			h.early = max(h.early, h.most()) // both calls may reach the store at once, in any order
		}
	}
	h.waiters = append(h.waiters, w)
	wait := func(l ratelimit.Waiter[string], s *sum, r *result) {
		go func() {
			err := l.Wait(ctx, "k", cost)
			h.mu.Lock()
			defer h.mu.Unlock()
			if *r = (result{time.Now(), err}); err == nil {
				s.add(r.at, cost)
				if s == &h.inStore {
					h.taken = append(h.taken, taking{process, r.at})
				}
			}
		}()
	}
	wait(h.memory, &h.inMemory, &w.memory)
	wait(h.fleet[process], &h.inStore, &w.store)
}

// leaves cancels a call waiting both in memory and in the store.
func (h *history) leaves() {
	h.improved()
	var all []*waiter
	h.mu.Lock()
	for _, w := range h.waiters {
		if w.memory.at.IsZero() && w.store.at.IsZero() {
			all = append(all, w)
		}
	}
	h.mu.Unlock()
	if len(all) == 0 {
		return
	}
	w := all[h.rng.IntN(len(all))]
	h.note("the one of cost %d of process %d leaves", w.cost, w.process)
	w.gone = true
	w.leave()
	time.Sleep(2*h.takes + time.Millisecond) // until the store has got the booking back
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.store.at.IsZero() {
		h.fail("a call that leaves stays")
	}
	for _, r := range []result{w.memory, w.store} {
		if r.err != nil && !errors.Is(r.err, context.Canceled) {
			h.fail("a call that leaves got %v", r.err)
		}
	}
	switch { // memory or the store had served it by then
	case w.memory.err == nil && w.store.err != nil:
		h.inStore.add(time.Now(), w.cost)
	case w.memory.err != nil && w.store.err == nil:
		h.inMemory.add(time.Now(), w.cost)
	}
}

// reserves makes a call without a wait. If the store and memory differ, the reservation is cancelled.
func (h *history) reserves(p Process, cost int) {
	m, err := h.memory.Reserve(context.Background(), "k", cost, 0)
	require.NoError(h, err)
	s, err := p.Reserve(context.Background(), "k", cost, 0)
	require.NoError(h, err)
	h.note("Reserve(%d): %v in memory, %v in the store", cost, m.Allowed, s.Allowed)
	switch {
	case m.Allowed && s.Allowed:
		h.take()
		h.open = append(h.open, pair{m, s, cost})
	case m.Allowed:
		require.NoError(h, m.Cancel())
	case s.Allowed:
		h.take()
		h.improved()
		require.NoError(h, s.Cancel())
	}
}

// settles settles an open reservation.
func (h *history) settles() {
	if len(h.open) == 0 || h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return
	}
	i := h.rng.IntN(len(h.open))
	r := h.open[i]
	h.open = slices.Delete(h.open, i, i+1)
	actual := h.rng.IntN(2*r.cost + 1)
	h.note("settle %d at %d", r.cost, actual)
	if actual < r.cost {
		h.improved()
	} else {
		h.worse()
		h.take()
	}
	require.NoError(h, r.memory.Settle(actual))
	require.NoError(h, r.store.Settle(actual))
}

// improved records a change known to one process alone. Other processes could
// serve calls earlier, but these calls keep their bookings until new calls come.
func (h *history) improved() {
	if len(h.fleet) == 1 {
		return
	}
	d, err := h.fleet[0].Peek(context.Background(), "k", 1)
	require.NoError(h, err)
	h.late += max(0, d.RetryAfter-time.Second, d.Delay-time.Second) // a leaky bucket admits a call and then delays it
}

// worse records that bookings may precede a debt's charge.
func (h *history) worse() {
	perSecond := h.limit.Rate.Units // a calendar's units
	if per := h.limit.Rate.Per; per > 0 {
		perSecond = int(time.Second * time.Duration(h.limit.Rate.Units) / per)
	}
	h.early += perSecond + h.most()*len(h.fleet)
}

// take records that a call without a wait has taken units, or is about to.
func (h *history) take() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taken = append(h.taken, taking{-1, time.Now()})
}

// ends ends all waiting calls by another limit. Then the history begins again, perhaps with a limit of another kind.
func (h *history) ends(limit ratelimit.Limit, want error) {
	h.note("SetLimit(%v)", limit)
	h.set(limit)
	time.Sleep(4*h.takes + time.Millisecond)
	synctest.Wait()
	for _, w := range h.waiters {
		w.leave()
		if w.store.at.IsZero() {
			h.fail("a call of cost %d waits under %v", w.cost, limit)
		}
		if !w.gone && w.store.err != nil && !errors.Is(w.store.err, want) {
			h.fail("a call of cost %d got %v", w.cost, w.store.err)
		}
	}
	h.waiters = nil
	if h.rng.IntN(2) == 0 {
		all := randomLimits()
		h.limit = all[h.rng.IntN(len(all))]
	}
	h.note("SetLimit(%v), Reset", h.limit)
	h.set(h.limit)
	require.NoError(h, h.memory.Reset(context.Background(), "k"))
	require.NoError(h, h.fleet[0].Reset(context.Background(), "k"))
	h.fresh()
}

// quiet waits until all calls are served. Once the budget has regained all, it must be full.
func (h *history) quiet() {
	for n := 0; h.waits(); n++ {
		if n == 1000 {
			h.fail("calls still wait")
		}
		time.Sleep(h.limit.RefillTime())
		h.agree()
	}
	r, err := h.fleet[0].Reserve(context.Background(), "k", 1, 0) // a decision puts the key under the new limit
	require.NoError(h, err)
	require.NoError(h, r.Cancel())
	m, err := h.memory.Peek(context.Background(), "k", 1)
	require.NoError(h, err)
	time.Sleep(h.late + max(2*h.limit.RefillTime(), m.ResetAfter)) // a debt may be above the capacity
	h.agree()
	d, err := h.fleet[0].Peek(context.Background(), "k", h.limit.Capacity())
	require.NoError(h, err)
	if !d.Allowed || d.ResetAfter > 0 {
		h.fail("something is left: %+v", d)
	}
}

// Reset tests a caller with a booking when another process resets the key. The caller
// must be charged again, although the next caller calls before the booking's instant.
func (s Bubble) Reset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process := s.Open(t, time.Millisecond)
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 10)
		here, there := process(limit), process(limit)
		require.True(t, there.Allow("k", 10))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { require.NoError(t, here.Wait(t.Context(), "k", 1)) })
			time.Sleep(50 * time.Millisecond) // until the first has booked and the others wait behind it
		}
		require.NoError(t, there.Reset(t.Context(), "k"))
		begin := time.Now()
		wg.Wait()
		require.Less(t, time.Since(begin), 700*time.Millisecond)
		d, err := there.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 2, d.Remaining)
		time.Sleep(time.Second) // until the last bookings were given back
	})
}
