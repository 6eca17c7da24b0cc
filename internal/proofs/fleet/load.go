package main

import (
	"context"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// tick is how often a goroutine of the load makes its part of the decisions.
const tick = 5 * time.Millisecond

// load makes decisions at a constant rate. If it misses ticks, it makes up for a few of them only.
type load struct {
	engine   engine
	deadline time.Duration // each caller's deadline; 0 means none
	keys     []string
	tallies  []*tally
	now      counts // all goroutines' sum; it may be read while they run
}

// counts has the numbers of decisions so far.
type counts struct {
	decisions, allowed, degraded, errors atomic.Int64
}

// tally is one goroutine's counts.
type tally struct {
	admitted    []int64 // by key
	byKey       []int64 // decisions, by key
	latency     histogram
	first, last time.Time // when the first and the last degraded decision were made
	firstErr    error
	picks       *rand.Zipf // picks keys
	owed        float64
}

func newLoad(s setup, e engine) *load {
	l := &load{engine: e, deadline: s.Deadline, keys: make([]string, s.Keys)}
	for i := range l.keys {
		l.keys[i] = "key:" + strconv.Itoa(i)
	}
	for g := range s.Goroutines {
		l.tallies = append(l.tallies, &tally{
			admitted: make([]int64, s.Keys),
			byKey:    make([]int64, s.Keys),
			picks:    rand.NewZipf(rand.New(rand.NewPCG(s.Seed, uint64(g))), s.Skew, 1, uint64(s.Keys-1)),
		})
	}
	return l
}

// run makes demand decisions a second from start to end.
func (l *load) run(demand int, start, end time.Time) {
	var wg sync.WaitGroup
	perTick := float64(demand) * tick.Seconds() / float64(len(l.tallies))
	for g, t := range l.tallies {
		wg.Go(func() {
			offset := tick * time.Duration(g) / time.Duration(len(l.tallies))
			l.runOne(t, perTick, start.Add(offset), end)
		})
	}
	wg.Wait()
}

func (l *load) runOne(t *tally, perTick float64, at, end time.Time) {
	for ; at.Before(end); at = at.Add(tick) {
		if late := time.Since(at); late > 4*tick {
			at = at.Add(late)
		}
		time.Sleep(time.Until(at))
		for t.owed += perTick; t.owed >= 1 && time.Now().Before(end); t.owed-- {
			l.decide(t)
		}
	}
}

// decide makes one decision, and counts it.
func (l *load) decide(t *tally) {
	key := t.picks.Uint64()
	ctx := context.Background()
	if l.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.deadline)
		defer cancel()
	}
	began := time.Now()
	d, err := l.engine.Take(ctx, l.keys[key], 1)
	t.latency.add(time.Since(began))
	t.byKey[key]++
	l.now.decisions.Add(1)
	if err != nil {
		l.now.errors.Add(1)
		if t.firstErr == nil {
			t.firstErr = err
		}
	}
	if d.Allowed {
		t.admitted[key]++
		l.now.allowed.Add(1)
	}
	if d.Degraded {
		l.now.degraded.Add(1)
		if t.last = time.Now(); t.first.IsZero() {
			t.first = began
		}
	}
}

// histogram counts durations in steps of 2^(1/16), about 4 %.
type histogram [16 * 40]int64

func (h *histogram) add(d time.Duration) {
	i := int(16 * math.Log2(float64(max(1, d))))
	h[min(i, len(h)-1)]++
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other {
		h[i] += n
	}
}

// quantile returns the upper end of the quantile's step.
func (h *histogram) quantile(q float64) time.Duration {
	total := int64(0)
	for _, n := range h {
		total += n
	}
	rank, seen := int64(math.Ceil(q*float64(total))), int64(0)
	for i, n := range h {
		if seen += n; seen >= rank && n > 0 {
			return time.Duration(math.Exp2(float64(i+1) / 16))
		}
	}
	return 0
}
