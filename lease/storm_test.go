package lease

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var storms = flag.Int("storms", testsize.Of(12, 500), "random runs of a fleet on a network that delays, fails, hangs and loses answers")

var stormSeed = flag.Int64("storm", -1, "the seed of the only storm to run")

// network connects a fleet's processes with their shared limiter. Its calls
// take some time, are refused, hang, or take effect without an answer.
type network struct {
	*ratelimit.Keyed[string]
	t *testing.T

	made     sync.Mutex // held by each call: the sums before and after it then show its effect
	mu       sync.Mutex // guards the fields below
	rng      *rand.Rand
	latency  int64 // the maximum time each way, in ns
	back     bool  // whether answers take time, too
	refused  int   // of 1000 calls, how many are refused
	hung     int
	lost     int
	deaf     bool           // whether hanging calls ignore their contexts
	orphaned map[string]int // units charged without an answer to the caller
	returned map[string]int // units given back with an error to the caller
	adjusted map[string]int
}

func (n *network) span() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.latency == 0 {
		return 0
	}
	return time.Duration(n.rng.Int64N(n.latency))
}

var errGone = fmt.Errorf("the network: %w", ratelimit.ErrUnavailable)

// there carries a call to the limiter. It reports whether the call's answer will be lost.
func (n *network) there(ctx context.Context) (lost bool, err error) {
	if err := sleep(ctx, n.span()); err != nil {
		return false, err
	}
	n.mu.Lock()
	roll, hung, refused, lose, deaf := n.rng.IntN(1000), n.hung, n.refused, n.lost, n.deaf
	n.mu.Unlock()
	switch {
	case roll < hung && deaf:
		time.Sleep(3 * time.Second)
		return false, errGone
	case roll < hung && ctx.Done() != nil:
		<-ctx.Done()
		return false, fmt.Errorf("the network: %w", ctx.Err())
	case roll < hung+refused:
		return false, errGone
	}
	return roll < hung+refused+lose, nil
}

// here carries an answer back.
func (n *network) here(ctx context.Context) error {
	if !n.back {
		return nil
	}
	return sleep(ctx, n.span())
}

func sleep(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *network) count(of map[string]int, key string, units int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of[key] += units
}

func (n *network) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	lost, err := n.there(ctx)
	if err != nil {
		return ratelimit.Decision{}, err
	}
	n.made.Lock()
	d, err := n.Keyed.Take(ctx, key, cost)
	n.made.Unlock()
	if err != nil {
		return d, err
	}
	if err = n.here(ctx); err == nil && lost {
		err = errGone
	}
	if err != nil && d.Allowed {
		n.count(n.orphaned, key, cost)
	}
	if err != nil {
		return ratelimit.Decision{}, err
	}
	return d, nil
}

func (n *network) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	lost, err := n.there(ctx)
	if err != nil {
		return nil, err
	}
	n.made.Lock()
	r, err := n.Keyed.Reserve(ctx, key, cost, maxDelay)
	n.made.Unlock()
	if err != nil {
		return r, err
	}
	if err = n.here(ctx); err == nil && lost {
		err = errGone
	}
	if err != nil && r.Allowed {
		n.count(n.orphaned, key, cost)
	}
	if err != nil {
		return nil, err
	}
	return ratelimit.NewReservation(r.Decision, func(actual int) error {
		lost, err := n.there(context.Background())
		if err != nil {
			return err
		}
		n.made.Lock()
		defer n.made.Unlock()
		before := n.spent(key)
		if err := r.Settle(actual); err != nil {
			return err
		}
		if lost {
			n.count(n.returned, key, before-n.spent(key))
			return errGone
		}
		return nil
	}), nil
}

// Wait replaces Keyed's own Wait. Its callers sleep in their own process, like the waiters of a store.
func (n *network) Wait(ctx context.Context, key string, cost int) error {
	return ratelimit.Wait(ctx, struct{ ratelimit.Reserver[string] }{n}, key, cost)
}

func (n *network) Adjust(ctx context.Context, key string, delta int) error {
	if _, err := n.there(ctx); err != nil {
		return err
	}
	n.made.Lock()
	defer n.made.Unlock()
	before := n.spent(key)
	err := n.Keyed.Adjust(context.Background(), key, delta)
	n.count(n.adjusted, key, n.spent(key)-before)
	return err
}

func (n *network) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if _, err := n.there(ctx); err != nil {
		return ratelimit.Decision{}, err
	}
	return n.Keyed.Peek(context.Background(), key, cost)
}

func (n *network) Reset(ctx context.Context, key string) error {
	if _, err := n.there(ctx); err != nil {
		return err
	}
	n.Keyed.Reset(context.Background(), key)
	return nil
}

// spent returns a key's charges, including debt. One unit must take eight hours to regain.
func (n *network) spent(key string) int {
	d, err := n.Keyed.Peek(context.Background(), key, 0)
	require.NoError(n.t, err)
	return int((d.ResetAfter + 8*time.Hour - 1) / (8 * time.Hour))
}

// stopped is a clock that stands still, so nothing is regained.
type stopped struct{}

func (stopped) Now() time.Duration { return 0 }

// bubbleClock reads the bubble's time.
type bubbleClock struct{ origin time.Time }

func (c bubbleClock) Now() time.Duration { return time.Since(c.origin) }

func (c bubbleClock) Wall() time.Time { return time.Now() }

// checkInvariants adds up each holding's batches, and compares the results with the sums in the holding.
func checkInvariants(t *testing.T, l *Limiter[string], at string) {
	t.Helper()
	idle := 0
	for _, h := range l.table.all() {
		h.mu.Lock()
		left, open, coming := 0, 0, 0
		for _, b := range h.batches {
			left += b.left
			open += b.open
			if b.gone || b.retired || b.left < 0 || b.open < 0 || b.left+b.open > b.size {
				t.Errorf("%s: a batch that is spent: %+v", at, *b)
			}
		}
		for _, b := range h.waiting {
			open += b.open
			if b.retired {
				idle += b.left
			} else if b.left > 0 {
				t.Errorf("%s: a batch that waits could be spent: %+v", at, *b)
			}
			if b.gone || b.open <= 0 {
				t.Errorf("%s: a batch that waits for nothing: %+v", at, *b)
			}
		}
		if h.fetch != nil {
			coming = h.fetch.n
		}
		if h.left != left || h.open != open || left+open+coming > l.maxBatch || h.demand < 0 {
			t.Errorf("%s: left %d of %d, open %d of %d, %d are coming, MaxBatch %d, demand %d", at, h.left, left, h.open, open, coming, l.maxBatch, h.demand)
		}
		h.mu.Unlock()
	}
	l.fetcher.returns.mu.Lock()
	waits := l.fetcher.returns.waits
	l.fetcher.returns.mu.Unlock()
	if waits != idle {
		t.Errorf("%s: %d units are said to wait, and %d do", at, waits, idle)
	}
}

// stormed is a fleet in a storm. It records the admissions.
type stormed struct {
	t        *testing.T
	net      *network
	nodes    []*Limiter[string]
	maxBatch int
	keys     []string
	exact    bool // whether the callers' answers must add up, whatever fails
	excess   bool // whether a settlement may exceed the reserved cost
	reset    bool

	mu       sync.Mutex
	admitted map[string][]admission
	reported map[string]int // counts the decisions passed to OnDecision
	perhaps  int            // the units that may still be charged after an error
	made     int
}

type admission struct {
	at   time.Time
	cost int
}

func (s *stormed) admit(key string, cost int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admitted[key] = append(s.admitted[key], admission{time.Now(), cost})
	return len(s.admitted[key]) - 1
}

// caller makes decisions, one a step.
func (s *stormed) caller(rng *rand.Rand, steps int) {
	var settling sync.WaitGroup
	defer settling.Wait()
	for range steps {
		node, key := s.nodes[rng.IntN(len(s.nodes))], s.keys[rng.IntN(len(s.keys))]
		cost := 1
		switch rng.IntN(6) {
		case 0:
			cost = 1 + rng.IntN(s.maxBatch+4)
		case 1:
			cost = 1 + rng.IntN(s.maxBatch)
		}
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		var deadline time.Time
		switch rng.IntN(5) {
		case 0:
			deadline = time.Now().Add(time.Duration(rng.IntN(int(60 * time.Millisecond))))
			ctx, cancel = context.WithDeadline(ctx, deadline)
		case 1:
			ctx, cancel = context.WithCancel(ctx)
			deadline = time.Now().Add(time.Duration(rng.IntN(int(60 * time.Millisecond))))
			timer := time.AfterFunc(time.Until(deadline), cancel)
			end := cancel
			cancel = func() { timer.Stop(); end() }
		}
		heeds, decided := s.one(rng, &settling, ctx, node, key, cost), time.Now()
		if heeds && !deadline.IsZero() && !s.net.deaf && decided.After(deadline) {
			s.t.Errorf("a caller has waited for %v after its context's end", decided.Sub(deadline))
		}
		cancel()
		if rng.IntN(3) > 0 {
			time.Sleep(time.Duration(rng.IntN(int(20 * time.Millisecond))))
		}
		if rng.IntN(100) == 0 {
			time.Sleep(time.Duration(rng.IntN(int(2 * time.Second))))
		}
	}
}

func (s *stormed) decided() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
}

func (s *stormed) one(rng *rand.Rand, settling *sync.WaitGroup, ctx context.Context, node *Limiter[string], key string, cost int) (heeds bool) {
	switch n := rng.IntN(40); {
	case n < 12:
		s.decided()
		if node.Allow(key, cost) {
			s.admit(key, cost)
		}
		return false
	case n < 20:
		s.decided()
		if d, err := node.Take(ctx, key, cost); err == nil && d.Allowed {
			s.admit(key, cost)
		}
	case n < 34:
		s.decided()
		var maxDelay time.Duration
		if !s.exact && rng.IntN(8) == 0 {
			maxDelay = time.Duration(rng.IntN(int(time.Second)))
		}
		res, err := node.Reserve(ctx, key, cost, maxDelay)
		if err != nil || !res.Allowed {
			return true
		}
		if res.Delay > 0 {
			go func() { _ = res.Cancel() }()
			return true
		}
		i := s.admit(key, cost)
		if rng.IntN(12) == 0 {
			return true // the reservation stays unsettled
		}
		actual := rng.IntN(cost + 1)
		if s.excess && rng.IntN(4) == 0 {
			actual = cost + rng.IntN(4)
		}
		after := time.Duration(rng.IntN(int(30 * time.Millisecond)))
		if rng.IntN(8) == 0 {
			after *= 100
		}
		settling.Go(func() {
			time.Sleep(after)
			err := res.Settle(actual)
			s.mu.Lock()
			defer s.mu.Unlock()
			if err != nil { // the reservation may have two parts, and one may have been given back
				s.perhaps += max(0, cost-actual)
			}
			s.admitted[key][i].cost = min(cost, actual)
			if actual > cost {
				s.admitted[key] = append(s.admitted[key], admission{time.Now(), actual - cost})
			}
		})
	case n < 36:
		s.decided()
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		err := node.Wait(ctx, key, cost)
		switch {
		case err == nil:
			s.admit(key, cost)
		case errors.Is(err, errGone): // the error states that units may stay charged
			s.mu.Lock()
			s.perhaps += cost
			s.mu.Unlock()
		}
		return false // the chain gives units back before it returns
	case n < 37:
		_, _ = node.Peek(ctx, key, cost)
	case n < 38 && s.exact:
		_ = node.Adjust(ctx, key, rng.IntN(20))
	case n < 39 && s.reset:
		_ = node.Reset(ctx, key)
	default:
		if rng.IntN(10) == 0 {
			flush, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = node.Flush(flush)
		}
		return false
	}
	return true
}

func newStorm(t *testing.T, limit ratelimit.Limit, clock ratelimit.Clock, rng *rand.Rand, failing bool) *stormed {
	keyed, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	n := &network{Keyed: keyed, t: t, rng: rand.New(rand.NewPCG(rng.Uint64(), 1)),
		orphaned: map[string]int{}, returned: map[string]int{}, adjusted: map[string]int{}}
	n.latency = []int64{0, 1e6, 20e6, 80e6}[rng.IntN(4)]
	if failing {
		n.refused, n.hung, n.lost = []int{0, 10, 300}[rng.IntN(3)], []int{0, 5, 100}[rng.IntN(3)], []int{0, 10, 200}[rng.IntN(3)]
		n.back, n.deaf = rng.IntN(2) == 0, rng.IntN(4) == 0
	}
	s := &stormed{t: t, net: n, maxBatch: 1 + rng.IntN(30), admitted: map[string][]admission{}, reported: map[string]int{}}
	for i := range 1 + rng.IntN(6) {
		s.keys = append(s.keys, fmt.Sprint("k", i))
	}
	hold := []time.Duration{0, 3 * time.Millisecond, 40 * time.Millisecond, 300 * time.Millisecond}[rng.IntN(4)]
	o := Options[string]{
		MaxBatch: s.maxBatch, HoldFor: hold, DenyFor: time.Duration(rng.IntN(3)-1) * 20 * time.Millisecond,
		Timeout: []time.Duration{0, 15 * time.Millisecond, 100 * time.Millisecond}[rng.IntN(3)],
		MaxKeys: []int{0, 2}[rng.IntN(2)], Clock: bubbleClock{time.Now()},
		OnDecision: func(e ratelimit.Event[string]) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reported[e.Key]++
		},
	}
	for range 1 + rng.IntN(4) {
		l, err := New[string](n, &o)
		require.NoError(t, err)
		s.nodes = append(s.nodes, l)
	}
	return s
}

// rage lets the callers run, and checks the sums now and then.
func (s *stormed) rage(rng *rand.Rand, at string) {
	var callers, watch sync.WaitGroup
	for range 1 + rng.IntN(12) {
		mine := rand.New(rand.NewPCG(rng.Uint64(), 2))
		callers.Go(func() { s.caller(mine, 60) })
	}
	done := make(chan struct{})
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(7 * time.Millisecond):
				for _, node := range s.nodes {
					checkInvariants(s.t, node, at)
				}
			}
		}
	})
	callers.Wait()
	close(done)
	watch.Wait()
}

// calm makes the network answer at once. Then it waits until each batch
// must have been given back, even if some reservations stay unsettled.
func (s *stormed) calm(at string) {
	n := s.net
	n.mu.Lock()
	n.latency, n.refused, n.hung, n.lost = 0, 0, 0, 0
	n.mu.Unlock()
	time.Sleep(12 * time.Second)
	synctest.Wait()
	for i, node := range s.nodes {
		checkInvariants(s.t, node, at)
		require.Zero(s.t, node.Stats().Held, "%s: process %d sits on units", at, i)
		node.fetcher.timers.mu.Lock()
		require.Empty(s.t, node.fetcher.timers.dates, "%s: process %d waits for what is not there", at, i)
		node.fetcher.timers.mu.Unlock()
		require.Empty(s.t, node.fetcher.returns.all(), at)
	}
}

// The charges equal the callers' answers plus the counted losses. No unit is admitted twice, and none is lost unnoticed.
func TestInAStormUnitsAreAdmittedHeldOrCountedAsLost(t *testing.T) {
	for _, seed := range stormSeeds() {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testsize.Seed(seed), 23))
			s := newStorm(t, ratelimit.TokenBucket(ratelimit.Per(1, 8*time.Hour), []int{200, 3000, 100_000}[rng.IntN(3)]), stopped{}, rng, rng.IntN(4) > 0)
			s.exact = true
			at := fmt.Sprintf("seed %d", seed)
			s.rage(rng, at)
			s.calm(at)
			lost, charged := 0, 0
			for _, key := range s.keys {
				charged += s.net.spent(key) - s.net.orphaned[key] - s.net.adjusted[key] + s.net.returned[key]
				for _, a := range s.admitted[key] {
					charged -= a.cost
				}
			}
			made, reported := s.made, 0
			for _, n := range s.reported {
				reported += n
			}
			for _, node := range s.nodes {
				lost += int(node.Stats().UnitsLost)
			}
			require.GreaterOrEqual(t, charged, lost, at)
			require.LessOrEqual(t, charged, lost+s.perhaps, at)
			require.Equal(t, made, reported, at)
		})
	}
}

// Any interval t admits at most burst + rate·t + processes × MaxBatch, whatever the network does to calls.
func TestInAStormTheBoundHoldsForAnyInterval(t *testing.T) {
	for _, seed := range stormSeeds() {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testsize.Seed(seed), 24))
			limit := ratelimit.TokenBucket(ratelimit.PerSecond(1+rng.IntN(400)), 1+rng.IntN(200))
			s := newStorm(t, limit, bubbleClock{time.Now()}, rng, rng.IntN(4) > 0)
			s.net.back = false // otherwise a charge would be older than its answer
			s.reset = false
			at := fmt.Sprintf("seed %d", seed)
			s.rage(rng, at)
			s.calm(at)
			bound := int64(limit.Burst+len(s.nodes)*s.maxBatch) * int64(limit.Rate.Per)
			for _, key := range s.keys {
				all := s.admitted[key]
				for i := range all {
					sum := int64(0)
					for _, a := range all[i:] {
						sum += int64(a.cost) * int64(limit.Rate.Per)
						over := sum - int64(a.at.Sub(all[i].at))*int64(limit.Rate.Units)
						require.LessOrEqual(t, over, bound, "%s: %v, %d processes × %d", at, limit, len(s.nodes), s.maxBatch)
					}
				}
			}
		})
	}
}

// Resets, and settlements above the reserved cost, run beside all other calls. The sums are right, and each call ends.
func TestInAStormTheSumsHoldBesideResetsAndExcess(t *testing.T) {
	for _, seed := range stormSeeds() {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testsize.Seed(seed), 25))
			limit := []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerSecond(200), 100), ratelimit.FixedWindow(ratelimit.PerSecond(100)),
				ratelimit.SlidingLog(ratelimit.PerSecond(60)), ratelimit.SlidingCounter(ratelimit.PerSecond(60)), ratelimit.LeakyBucket(ratelimit.PerSecond(200), 50),
				ratelimit.Calendar(100, ratelimit.Day("UTC"))}[rng.IntN(6)]
			s := newStorm(t, limit, bubbleClock{time.Now()}, rng, true)
			s.excess, s.reset, s.exact = true, true, rng.IntN(2) == 0
			at := fmt.Sprintf("seed %d", seed)
			s.rage(rng, at)
			s.calm(at)
		})
	}
}

// stormSeeds returns the runs' seeds.
func stormSeeds() (seeds []uint64) {
	if *stormSeed >= 0 {
		return []uint64{uint64(*stormSeed)}
	}
	n := *storms
	for seed := range uint64(n) {
		seeds = append(seeds, seed)
	}
	return seeds
}

// A chain has a lease, and then a limiter that denies, fails and hangs. Units refused
// to the chain's callers go back to the lease, and no unit is lost unnoticed.
func TestInAStormAChainGivesBackToItsLease(t *testing.T) {
	for _, seed := range stormSeeds() {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testsize.Seed(seed), 26))
			s := newStorm(t, ratelimit.TokenBucket(ratelimit.Per(1, 8*time.Hour), 5000), stopped{}, rng, false)
			second := newStorm(t, ratelimit.TokenBucket(ratelimit.Per(1, 8*time.Hour), []int{20, 300, 5000}[rng.IntN(3)]).Named("second"), stopped{}, rng, true).net
			var callers, settling sync.WaitGroup
			for _, node := range s.nodes {
				chain, err := chain.New[string](node, second)
				require.NoError(t, err)
				banned, err := ban.New[string](chain, newStorm(t, ratelimit.FixedWindow(ratelimit.PerSecond(20)), bubbleClock{time.Now()}, rng, false).net,
					newStorm(t, ratelimit.FixedWindow(ratelimit.Per(1, 200*time.Millisecond)), bubbleClock{time.Now()}, rng, false).net)
				require.NoError(t, err)
				for range 1 + rng.IntN(5) {
					mine := rand.New(rand.NewPCG(rng.Uint64(), 2))
					callers.Go(func() {
						for range 60 {
							s.chained(mine, &settling, banned)
							time.Sleep(time.Duration(mine.IntN(int(20 * time.Millisecond))))
						}
					})
				}
			}
			callers.Wait()
			settling.Wait()
			at := fmt.Sprintf("seed %d", seed)
			s.calm(at)
			charged, lost := 0, 0
			for _, key := range s.keys {
				charged += s.net.spent(key) - s.net.orphaned[key]
				for _, a := range s.admitted[key] {
					charged -= a.cost
				}
			}
			for _, node := range s.nodes {
				lost += int(node.Stats().UnitsLost)
			}
			require.Equal(t, lost, charged, at)
		})
	}
}

// chained makes one decision by a chain behind a ban.
func (s *stormed) chained(rng *rand.Rand, settling *sync.WaitGroup, l *ban.Limiter[string]) {
	key, cost := s.keys[rng.IntN(len(s.keys))], 1+rng.IntN(s.maxBatch+4)
	if rng.IntN(2) == 0 {
		cost = 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(int(200*time.Millisecond))))
	defer cancel()
	switch rng.IntN(3) {
	case 0:
		if d, err := l.Take(ctx, key, cost); err == nil && d.Allowed {
			s.admit(key, cost)
		}
	case 1:
		if granted, _, err := ratelimit.TakeUpTo[string](ctx, l, key, cost); err == nil && granted > 0 {
			s.admit(key, granted)
		}
	case 2:
		res, err := l.Reserve(ctx, key, cost, 0)
		if err != nil || !res.Allowed {
			return
		}
		actual := rng.IntN(cost + 1)
		s.admit(key, actual)
		settling.Go(func() {
			time.Sleep(time.Duration(rand.IntN(int(100 * time.Millisecond))))
			_ = res.Settle(actual) // the second limiter may fail, but the lease does not
		})
	}
}
