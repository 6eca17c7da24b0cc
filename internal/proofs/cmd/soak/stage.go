package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// limiter is the limiter under test.
type limiter interface {
	ratelimit.Reserver[uint64]
	Peek(ctx context.Context, key uint64, cost int) (ratelimit.Decision, error)
	SetLimit(limit ratelimit.Limit) error
	Refresh(keys ...uint64)
	Sweep() int
	Stats() ratelimit.Stats
}

// setup is a stage's configuration.
type setup struct {
	limit   ratelimit.Limit
	lasts   time.Duration
	keys    uint64 // how many keys the flood invents
	maxKeys int
	workers int
	every   time.Duration // the time between two checks
	calm    int           // of so many turns, the driver sweeps or changes limits in nine
	out     io.Writer
	make    func(limit ratelimit.Limit, opts *ratelimit.Options[uint64]) (limiter, error)
}

// watched is how many keys are checked against their bound: the smallest ones.
const watched = 64

// stage runs two limiters under load, both with one limit. One refuses new keys
// when it is full, and so must not forget any spending. The other one evicts keys.
type stage struct {
	setup
	world    sync.RWMutex // read-locked while something is spent, and locked during checks
	clock    clock
	refusing limiter
	evicting limiter
	accounts [watched]account
	lowered  atomic.Bool // whether LimitFor returns the lower plan for odd keys
	calls    atomic.Int64
	gauge    gauge
	broken   chan error
}

// run runs the load until the time is over, the context ends, or a bound is violated.
func run(ctx context.Context, s setup) error {
	g := gauge{goroutines: runtime.NumGoroutine() + s.workers + 2} // includes the driver and the watcher
	st := &stage{setup: s, gauge: g, broken: make(chan error, 1)}
	if err := st.build(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, s.lasts)
	defer stop()
	st.fill()
	var crew sync.WaitGroup
	for i := range s.workers {
		crew.Go(func() { st.work(ctx, rand.New(rand.NewPCG(uint64(i), rand.Uint64()))) })
	}
	crew.Go(func() { st.drive(ctx, rand.New(rand.NewPCG(rand.Uint64(), 0))) })
	crew.Go(func() { st.watch(ctx) })
	err := st.supervise(ctx)
	stop()
	crew.Wait()
	return err
}

func (s *stage) build() (err error) {
	opts := ratelimit.Options[uint64]{Clock: &s.clock, MaxKeys: s.maxKeys, LimitFor: s.limitFor}
	if s.evicting, err = s.make(s.limit, &opts); err != nil {
		return err
	}
	opts.OnFull = ratelimit.RefuseNew
	s.refusing, err = s.make(s.limit, &opts)
	for i := range s.accounts {
		s.accounts[i].key, s.accounts[i].marks = uint64(i), []mark{{}} // nothing is spent at 0
	}
	return err
}

// fill fills both tables, so the heap has its full size before it is measured.
func (s *stage) fill() {
	for key := range uint64(s.maxKeys) {
		s.evicting.Allow(key, 1)
		if s.refusing.Allow(key, 1) && key < watched {
			s.accounts[key].spent.Add(1)
		}
	}
	s.gauge.heap = heapInUse()
}

// limitFor returns a changing plan for watched keys with odd numbers.
func (s *stage) limitFor(key uint64) (l ratelimit.Limit) {
	if key < watched && key%2 == 1 && s.lowered.Load() {
		return half(s.limit)
	}
	return l
}

func half(l ratelimit.Limit) ratelimit.Limit {
	l.Rate.Units /= 2
	l.Burst /= 2
	return l
}

// ---- load ----

func (s *stage) work(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		s.world.RLock()
		for range 64 {
			s.spend(rng)
			s.flood(rng)
		}
		s.world.RUnlock()
		s.calls.Add(64 * 4)
	}
}

// spend charges a watched key in one of several ways.
func (s *stage) spend(rng *rand.Rand) {
	a := &s.accounts[rng.IntN(watched)]
	cost := 1 + rng.IntN(3)
	if rng.IntN(4) == 0 {
		s.reserve(a, cost, rng.IntN(cost+1))
		return
	}
	if s.refusing.Allow(a.key, cost) {
		a.spent.Add(int64(cost))
	}
}

// reserve spends an estimate and gives the rest back.
func (s *stage) reserve(a *account, cost, actual int) {
	r, err := s.refusing.Reserve(context.Background(), a.key, cost, 0)
	if err != nil && !errors.Is(err, ratelimit.ErrTableFull) {
		s.fail(fmt.Errorf("key %d cannot be reserved: %w", a.key, err))
	}
	if r.Allowed {
		r.Settle(actual)
		a.spent.Add(int64(actual))
	}
}

// flood uses invented keys, and some of them again.
func (s *stage) flood(rng *rand.Rand) {
	key := watched + rng.Uint64N(s.keys)
	s.evicting.Allow(key, 1)
	s.evicting.Allow(watched+key%1000, 1)
	s.refusing.Allow(key, 1)
}

// drive moves the clock, sweeps and changes limits.
func (s *stage) drive(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		s.world.RLock()
		s.clock.tick(rng)
		switch rng.IntN(s.calm) {
		case 0:
			s.evicting.Sweep()
		case 1:
			s.refusing.Sweep()
		case 2, 3, 4:
			s.change(rng.IntN(2) == 0)
		case 5, 6, 7:
			s.lowered.Store(!s.lowered.Load())
			s.refusing.Refresh(1, 3, 5, 7)
		case 8:
			s.refusing.Refresh()
		}
		s.world.RUnlock()
		time.Sleep(100 * time.Microsecond)
	}
}

func (s *stage) change(lower bool) {
	l := s.limit
	if lower {
		l = half(l)
	}
	if err := errors.Join(s.refusing.SetLimit(l), s.evicting.SetLimit(l)); err != nil {
		s.fail(fmt.Errorf("SetLimit(%v): %w", l, err))
	}
}

// ---- checks ----

func (s *stage) fail(err error) {
	select {
	case s.broken <- err:
	default: // one violation is enough
	}
}

// watch checks the tables' size while they fill.
func (s *stage) watch(ctx context.Context) {
	for ctx.Err() == nil {
		for _, l := range []limiter{s.refusing, s.evicting} {
			if n := l.Stats().Keys; n > s.maxKeys {
				s.fail(fmt.Errorf("%d keys are tracked, of %d at most", n, s.maxKeys))
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// supervise checks, and prints progress, until the time is over or a bound is violated.
func (s *stage) supervise(ctx context.Context) error {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	begin := time.Now()
	for {
		select {
		case err := <-s.broken:
			return err
		case <-ctx.Done():
			err := s.last()
			s.report(time.Since(begin))
			return err
		case <-tick.C:
		}
		if err := s.check(); err != nil {
			return err
		}
		s.report(time.Since(begin))
	}
}

// last makes the check at the end.
func (s *stage) last() error {
	select {
	case err := <-s.broken:
		return err
	default:
		return s.check()
	}
}

// check stops all load and makes all checks.
func (s *stage) check() error {
	s.world.Lock()
	defer s.world.Unlock()
	low, high := s.clock.lowest(), s.clock.highest()
	for i := range s.accounts {
		if err := s.accounts[i].check(s.limit, low, high); err != nil {
			return err
		}
	}
	for i := range 3 {
		if err := s.probe(&s.accounts[i]); err != nil {
			return err
		}
	}
	return s.gauge.check()
}

// probe checks RetryAfter in the key's present state. Until its next decision, the key
// regains at its last limit's rate. So Allow first puts it under the limit in force.
func (s *stage) probe(a *account) error {
	if s.refusing.Allow(a.key, 3) {
		a.spent.Add(3)
		return nil
	}
	d, err := s.refusing.Peek(context.Background(), a.key, 3)
	if err != nil || d.Allowed {
		return err
	}
	s.clock.now.Add(int64(d.RetryAfter) - 1)
	early := s.refusing.Allow(a.key, 3)
	s.clock.now.Add(1)
	if early || !s.refusing.Allow(a.key, 3) {
		return fmt.Errorf("key %d: RetryAfter was %v, and 1 ns before it Allow returns %v", a.key, d.RetryAfter, early)
	}
	a.spent.Add(3)
	return nil
}

func (s *stage) report(since time.Duration) {
	e, r := s.evicting.Stats(), s.refusing.Stats()
	n := s.calls.Load()
	fmt.Fprintf(s.out, "%-15v %8v of %v  %6.1f M calls  %5.2f M/s  keys %d and %d  evicted %d  expired %d  refused %d  heap %d MB  goroutines %d\n",
		s.limit.Algorithm, since.Round(time.Second), s.lasts, float64(n)/1e6, float64(n)/1e6/since.Seconds(),
		e.Keys, r.Keys, e.Evicted, e.Expired+r.Expired, r.Refused, s.gauge.now>>20, runtime.NumGoroutine())
}
