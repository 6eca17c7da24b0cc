package inflight

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// lockCheck is a clock. It fails the test if it is read while one of the limiter's locks is held.
type lockCheck struct {
	t     *testing.T
	l     *Limiter[string]
	reads atomic.Int64
}

func (c *lockCheck) Now() time.Duration {
	n := c.reads.Add(1)
	if !crowd.Unlocked(&c.l.table.mu) {
		c.t.Error("the table is locked")
		return 0
	}
	for _, e := range c.l.entries(nil) {
		if !crowd.Unlocked(e.mutex()) {
			c.t.Errorf("key %s is locked", e.key)
		}
	}
	return time.Duration(n) * time.Millisecond
}

// windowOfOne is an algorithm whose windows have one outcome.
type windowOfOne struct{ Algorithm }

func (windowOfOne) Window() int { return 1 }
func (windowOfOne) Limit() int  { return 2 }

func short() Algorithm { return windowOfOne{Learn(&LearnOptions{Start: 2})()} }

func TestTheClockIsReadUnderNoLock(t *testing.T) {
	for name, o := range map[string]Options[string]{
		"fixed":      {},
		"adaptive":   {Adaptive: short},
		"Total":      {Total: 2},
		"Shared":     {Total: 2, Shared: short},
		"MaxWaiting": {MaxWaiting: 1, Priority: func(key string) int { return int(key[0]) }},
		"Shadow":     {Total: 1, Shadow: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := &lockCheck{t: t}
				o.Clock, o.MaxQueue, o.MaxKeys = clock, 2, 2
				l := ratelimit.Must(New(2, &o))
				clock.l = l
				ctx, cancel := context.WithCancel(context.Background())
				held := permitOf(l.TryAcquire("a", 2))
				type result struct {
					permit Permit
					err    error
				}
				got := make(chan result, 3)
				wait := func(ctx context.Context, key string) {
					go func() {
						p, err := l.Acquire(ctx, key, 1)
						got <- result{p, err}
					}()
					synctest.Wait()
				}
				wait(context.Background(), "a")
				wait(ctx, "a")
				wait(context.Background(), "b")
				_, _ = l.TryAcquire("a", 1)
				cancel()
				synctest.Wait()
				require.NoError(t, l.SetLimit(2))
				if o.Total > 0 {
					require.NoError(t, l.SetTotal(2))
				}
				l.Refresh()
				l.Stats("a")
				l.Snapshot()
				l.Totals()
				held.Release()
				for range 3 {
					synctest.Wait()
					r := <-got
					if r.err != nil && !errors.Is(r.err, context.Canceled) {
						require.ErrorIs(t, r.err, ratelimit.ErrLimited)
					}
					r.permit.Done(Dropped)
				}
				for _, key := range []string{"c", "d", "a"} { // the full table drops the other keys
					p := permitOf(l.TryAcquire(key, 1))
					p.Done(Success)
				}
				assert.NotZero(t, clock.reads.Load())
			})
		})
	}
}

// permitOf returns the permit. It panics if err is not nil.
func permitOf(p Permit, err error) Permit {
	if err != nil {
		panic(err)
	}
	return p
}

// scripted is a clock with readings in any order, as calls waiting for a lock see them.
type scripted struct {
	rng *rand.Rand
	at  time.Duration
}

func (c *scripted) Now() time.Duration {
	c.at += time.Duration(c.rng.IntN(2000)) * time.Microsecond
	return c.at - time.Duration(c.rng.IntN(3))*time.Second*time.Duration(c.rng.IntN(2))
}

// Later work never counts as begun earlier.
func TestAReadingThatIsOlderThanTheLastCountsAsThat(t *testing.T) {
	for seed := range uint64(testsize.Of(50, 500)) {
		rng := rand.New(rand.NewPCG(testsize.Seed(seed), 41))
		clock := &scripted{rng: rng}
		o := Options[string]{Clock: clock, Total: 4, Shared: short, MaxQueue: 3}
		if seed%2 == 1 {
			o = Options[string]{Clock: clock, Adaptive: short, MaxQueue: 3}
		}
		l := ratelimit.Must(New(3, &o))
		var held []Permit
		latest := map[*learner]time.Duration{}
		for range 200 {
			key := []string{"a", "b"}[rng.IntN(2)]
			if len(held) > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(len(held))
				held[i].Done(Outcome(rng.IntN(4)))
				held = append(held[:i], held[i+1:]...)
				continue
			}
			p, err := l.TryAcquire(key, 1+rng.IntN(2))
			if err != nil {
				continue
			}
			held = append(held, p)
			learner, start := p.semaphore.learner, p.semaphore.works.begunAt(p.place).start
			if last, ok := latest[learner]; ok {
				require.GreaterOrEqual(t, start, last, "seed %d", seed)
			}
			require.GreaterOrEqual(t, start, p.semaphore.until, "seed %d: its slot-time", seed)
			require.GreaterOrEqual(t, start, learner.window.since, "seed %d: its window", seed)
			latest[learner] = start
		}
	}
}
