package model

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// modelLine is a model of one key and its waiters. Before any other event, it
// serves all waiters due by then, each at the first instant when its cost fits.
type modelLine struct {
	*model
	turns  []modelTurn
	served map[int]int64
	failed map[int]error
}

type modelTurn struct {
	id   int
	cost int64
}

func (l *modelLine) clone() *modelLine {
	c := *l.model
	c.base = c.base.clone()
	return &modelLine{&c, slices.Clone(l.turns), maps.Clone(l.served), maps.Clone(l.failed)}
}

// spendTurn spends a waiter's cost at the first instant when it fits, but not before from.
func spendTurn(s spending, from, cost int64) *booking {
	b := &booking{cost: cost}
	if q, ok := s.(*modelQueue); ok {
		b = q.enter(from, cost)
	} else {
		b.at = s.earliest(from, cost)
	}
	return b
}

func (l *modelLine) serve(now int64) {
	from := now
	if l.known {
		from = l.last
	}
	for len(l.turns) > 0 {
		t := l.turns[0]
		b := spendTurn(l.base, from, t.cost)
		if b.at > now {
			break
		}
		l.base.spend(b)
		l.served[t.id], from = b.at, b.at
		l.turns = l.turns[1:]
	}
	if l.known || len(l.served) > 0 {
		l.record(now)
	}
}

// retryAfter returns the RetryAfter of a cost denied behind the line.
func (l *modelLine) retryAfter(now, cost int64) time.Duration {
	s, from := l.base.clone(), now
	for _, t := range l.turns {
		b := spendTurn(s, from, t.cost)
		s.spend(b)
		if from = b.at; l.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			from = now
		}
	}
	return time.Duration(s.earliest(from, cost) - now)
}

// bubbleClock reads a bubble's time, counted from start.
type bubbleClock struct{ start time.Time }

func (c bubbleClock) Now() time.Duration { return time.Since(c.start) }
func (c bubbleClock) Wall() time.Time    { return time.Unix(0, int64(c.Now())) }

type lineGame struct {
	*testing.T
	rng     *rand.Rand
	start   time.Time
	limiter *ratelimit.Keyed[string]
	want    *modelLine
	open    []openTurn
	leave   map[int]context.CancelFunc
	mu      sync.Mutex // guards the fields below
	served  map[int]int64
	failed  map[int]error
	log     []string
}

type openTurn struct {
	real *ratelimit.Reservation
	want *receipt
}

func (g *lineGame) note(format string, args ...any) {
	g.log = append(g.log, fmt.Sprintf("%v ", time.Since(g.start))+fmt.Sprintf(format, args...))
}

// try makes a change in the model and in the limiter, unless several results would be right.
func (g *lineGame) try(what string, change func(l *modelLine, now int64), real func()) {
	now := int64(time.Since(g.start))
	g.want.serve(now)
	c := g.want.clone()
	if change(c, now); c.blurry {
		return
	}
	g.note("%s", what)
	g.want = c
	c.serve(now)
	real()
}

func (g *lineGame) agree() {
	synctest.Wait()
	g.want.serve(int64(time.Since(g.start)))
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Equal(g, g.want.served, g.served, "%v", g.log)
	require.Len(g, g.failed, len(g.want.failed), "%v", g.log)
	for id, err := range g.want.failed {
		require.ErrorIs(g, g.failed[id], err, "%v", g.log)
	}
}

func (g *lineGame) step(id int) {
	l, ctx := g.limiter, context.Background()
	limit := g.want.limit
	cost := 1 + g.rng.IntN(min(limit.Capacity(), 1+g.rng.IntN(8)))
	queue := limit.Algorithm == ratelimit.AlgorithmLeakyBucket
	switch g.rng.IntN(15) {
	case 0, 1, 2, 3:
		g.try(fmt.Sprintf("Wait(%d) of %d", cost, id), func(m *modelLine, now int64) {
			if queue && m.retryAfter(now, int64(cost)) > 0 { // the queue is full
				m.failed[id] = ratelimit.ErrLimited
				return
			}
			m.turns = append(m.turns, modelTurn{id, int64(cost)})
		}, func() {
			ctx, cancel := context.WithCancel(ctx)
			g.leave[id] = cancel
			go func() {
				err := l.Wait(ctx, "k", cost)
				g.mu.Lock()
				defer g.mu.Unlock()
				if err != nil {
					g.failed[id] = err
				} else {
					g.served[id] = int64(time.Since(g.start))
				}
			}()
		})
	case 4:
		if len(g.want.turns) == 0 {
			return
		}
		t := g.want.turns[g.rng.IntN(len(g.want.turns))]
		if _, gone := g.want.served[t.id]; gone {
			return
		}
		g.try(fmt.Sprintf("%d leaves", t.id), func(m *modelLine, _ int64) {
			if i := slices.Index(m.turns, t); i >= 0 {
				m.turns = slices.Delete(m.turns, i, i+1)
				m.failed[t.id] = context.Canceled
			}
		}, func() { g.leave[t.id]() })
	case 5, 6:
		g.newcomer(cost, queue)
	case 7, 8:
		if len(g.open) == 0 {
			return
		}
		i := g.rng.IntN(len(g.open))
		o := g.open[i]
		actual := g.rng.IntN(2*int(max(1, o.want.cost)) + 1)
		if queue {
			actual = 0
		}
		before := o.want.settled
		done := false
		g.try(fmt.Sprintf("settle %d at %d", o.want.cost, actual), func(m *modelLine, now int64) {
			// A log keeps the instants of the units set aside by a lowered limit. The model does not.
			m.blurry = m.aside.units > 0 && limit.Algorithm == ratelimit.AlgorithmSlidingLog
			m.settle(now, o.want, actual)
		}, func() {
			done = true
			require.NoError(g, o.real.Settle(actual))
		})
		if !done {
			o.want.settled = before
			return
		}
		g.open = slices.Delete(g.open, i, i+1)
	case 9:
		delta := g.rng.IntN(3*limit.Capacity()) - limit.Capacity()
		g.try(fmt.Sprintf("Adjust(%d)", delta), func(m *modelLine, now int64) { m.adjust(now, delta) }, func() {
			require.NoError(g, l.Adjust(ctx, "k", delta))
			if delta < 0 && queue {
				g.open = nil // a grant may already have given a place in the queue back
			}
		})
	case 10:
		next := lineLimits()[g.rng.IntN(len(lineLimits()))]
		if g.rng.IntN(2) == 0 || next.Algorithm != limit.Algorithm {
			next = limit
			next.Rate.Units = 1 + g.rng.IntN(20)
		}
		g.try(fmt.Sprintf("SetLimit(%v)", next), func(m *modelLine, now int64) {
			m.adopt(next, now)
			for _, o := range g.open {
				o.want.changed = o.want.changed || next != limit
			}
			m.turns = slices.DeleteFunc(m.turns, func(t modelTurn) bool {
				if t.cost > int64(next.Capacity()) {
					m.failed[t.id] = ratelimit.ErrExceedsLimit
					return true
				}
				return false
			})
		}, func() {
			require.NoError(g, l.SetLimit(next))
			if limit.Algorithm == ratelimit.AlgorithmTokenBucket {
				g.open = nil // all limits since then bound these refunds: internal/meter tests them
			}
			synctest.Wait()
			g.newcomer(1, queue) // puts the key under the limit, even if no call waits
		})
	case 11:
		g.try("Blocked, and again the limit, and Reset", func(m *modelLine, _ int64) {
			for _, t := range m.turns {
				m.failed[t.id] = ratelimit.ErrBlocked
			}
			m.turns = nil
			m.reset()
		}, func() { g.meanwhile(ratelimit.Blocked()) })
		g.open = nil
	case 12:
		g.try("Unlimited, and again the limit, and Reset", func(m *modelLine, now int64) {
			for _, t := range m.turns {
				m.served[t.id] = now
			}
			m.turns = nil
			m.reset()
		}, func() { g.meanwhile(ratelimit.Unlimited()) })
		g.open = nil
	case 13:
		g.restart(cost)
	case 14:
		g.try("Reset", func(m *modelLine, _ int64) { m.reset() }, func() { require.NoError(g, l.Reset(ctx, "k")) })
		g.open = nil
	}
}

// meanwhile sets another limit for an instant.
func (g *lineGame) meanwhile(limit ratelimit.Limit) {
	require.NoError(g, g.limiter.SetLimit(limit))
	synctest.Wait()
	require.NoError(g, g.limiter.SetLimit(g.want.limit))
	require.NoError(g, g.limiter.Reset(context.Background(), "k"))
}

// restart compares a Peek after a restart, without waiters, with the model's.
func (g *lineGame) restart(cost int) {
	now := int64(time.Since(g.start))
	g.want.serve(now)
	if !g.want.known {
		return
	}
	saved := g.limiter.Saved()
	other, err := ratelimit.New(g.want.limit, &ratelimit.Options[string]{Clock: bubbleClock{g.start}})
	require.NoError(g, err)
	require.NoError(g, other.Restore(saved, 0))
	g.note("restart, Peek(%d)", cost)
	alone := g.want.clone()
	alone.turns = nil
	want, _, _ := alone.take(now, cost, -1, false)
	got, err := other.Peek(context.Background(), "k", cost)
	require.NoError(g, err)
	require.Equal(g, [2]any{want.Allowed, want.RetryAfter}, [2]any{got.Allowed, got.RetryAfter}, "%v", g.log)
}

// newcomer makes a call that does not wait.
func (g *lineGame) newcomer(cost int, queue bool) {
	now := int64(time.Since(g.start))
	g.want.serve(now)
	if len(g.want.turns) == 0 {
		want, r, _ := g.want.take(now, cost, 0, true)
		g.note("Reserve(%d): %v", cost, want)
		got, err := g.limiter.Reserve(context.Background(), "k", cost, 0)
		require.NoError(g, err)
		require.Equal(g, [2]any{want.Allowed, want.RetryAfter}, [2]any{got.Allowed, got.RetryAfter}, "%v", g.log)
		if r != nil {
			g.open = append(g.open, openTurn{got, r})
		}
		return
	}
	if queue {
		return // the call may enter the queue behind the line
	}
	g.note("Take(%d) behind %d", cost, len(g.want.turns))
	got, err := g.limiter.Take(context.Background(), "k", cost)
	require.NoError(g, err)
	require.False(g, got.Allowed, "a newcomer overtakes: %v", g.log)
	require.Equal(g, g.want.retryAfter(now, int64(cost)), got.RetryAfter, "%v", g.log)
}

func lineLimits() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(3), 5), ratelimit.TokenBucket(ratelimit.Per(7, 3*time.Second), 1), ratelimit.TokenBucket(ratelimit.PerMinute(100), 20),
		ratelimit.LeakyBucket(ratelimit.PerSecond(3), 8), ratelimit.FixedWindow(ratelimit.PerSecond(4)), ratelimit.FixedWindow(ratelimit.PerMinute(9)),
		ratelimit.SlidingLog(ratelimit.PerSecond(4)), ratelimit.SlidingLog(ratelimit.PerMinute(9)), ratelimit.SlidingCounter(ratelimit.PerSecond(5)),
		ratelimit.SlidingCounter(ratelimit.Per(7, 3*time.Second)), ratelimit.Calendar(5, ratelimit.Minute("Asia/Kolkata")),
	}
}

// In a random history, calls wait, leave, reserve, settle, adjust and reset while the
// limit changes. Each waiter is served when the model serves it: at the first possible
// instant, in the order of arrival, and never after a call that does not wait.
func TestRandomLinesAreServedAsEarlyAsTheStateAllows(t *testing.T) {
	testsize.Sequential(t)
	for i, limit := range lineLimits() {
		for seed := range Rounds(400) {
			if !t.Run(fmt.Sprintf("%v/%d", limit, seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { playLine(t, limit, uint64(i)<<32|seed) }) }) {
				return
			}
		}
	}
}

func playLine(t *testing.T, limit ratelimit.Limit, seed uint64) {
	start := time.Now()
	l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: bubbleClock{start}})
	require.NoError(t, err)
	g := &lineGame{T: t, rng: rand.New(rand.NewPCG(testsize.Seed(seed), 68)), start: start, limiter: l, leave: map[int]context.CancelFunc{},
		want: &modelLine{newModel(limit), nil, map[int]int64{}, map[int]error{}}, served: map[int]int64{}, failed: map[int]error{}}
	defer func() {
		for _, cancel := range g.leave {
			cancel()
		}
		synctest.Wait()
	}()
	for id := range 60 {
		g.step(id)
		g.agree()
		span := int64(Span(g.want.limit)) / int64(g.want.limit.Rate.Units)
		spans := []int64{0, 0, 1, span / 3, span, 2 * span, g.rng.Int64N(int64(Span(g.want.limit)) + 1)}
		time.Sleep(time.Duration(spans[g.rng.IntN(len(spans))]))
		g.agree()
	}
}
