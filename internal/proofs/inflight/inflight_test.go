package inflight

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
)

const (
	histories = 1500
	clients   = 4
	rounds    = 5 // rounds per client: each takes units, and perhaps gives them back
)

type kind int

const (
	try kind = iota
	wait
	release
	releaseAgain
	setLimit
)

// call is one operation. n counts its units, or is the limit.
type call struct {
	kind kind
	n    int
}

func (c call) String() string {
	return fmt.Sprintf("%s(%d)", [...]string{"TryAcquire", "Acquire", "Release", "Release again", "SetLimit"}[c.kind], c.n)
}

// state is a key's state in the model.
type state struct{ inFlight, limit int }

// semaphore is the interface under test.
type semaphore interface {
	TryAcquire(key string, n int) (inflight.Permit, error)
	Acquire(ctx context.Context, key string, n int) (inflight.Permit, error)
	SetLimit(limit int) error
}

// model is a counter and a limit. total, if set, also bounds the units
// in flight. If callers wait, a call may be refused in their favour.
func model(limit, total int, waits bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{0, limit} },
		Step: func(before, in, out any) (bool, any) {
			s, c := before.(state), in.(call)
			fits := s.inFlight+c.n <= min(s.limit, total)
			switch {
			case c.kind == setLimit:
				s.limit = c.n
			case c.kind == release:
				s.inFlight -= c.n
				return s.inFlight >= 0, s
			case c.kind == releaseAgain:
			case out.(bool):
				s.inFlight += c.n
				return fits, s
			case !waits:
				return !fits, s
			}
			return true, s
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v: %v", in, out) },
	}
}

// setup is a kind of history.
type setup struct {
	name  string
	total int
	waits bool
}

var setups = []setup{
	{"one lock for each key", 0, false},
	{"Total", 4, false},
	{"callers that wait", 0, true},
	{"callers that wait for Total", 4, true},
}

const most = 5 // the highest limit

// yielding is a clock that lets other goroutines run when it is read. A call reads it before it takes the key's lock.
type yielding struct{ reads atomic.Int64 }

func (c *yielding) Now() time.Duration {
	if c.reads.Add(1)%2 == 0 {
		runtime.Gosched()
	}
	return 0
}

// bound is an algorithm that always returns the upper bound.
type bound struct{}

func (bound) Limit() int                 { return most }
func (bound) Update(inflight.Sample) int { return most }

func (s setup) limiter() *inflight.Limiter[string] {
	return ratelimit.Must(inflight.New(most, &inflight.Options[string]{
		Total: s.total, MaxQueue: 3, MaxKeys: 2, Clock: new(yielding),
		Adaptive: func() inflight.Algorithm { return bound{} }, // so that the clock is read
	}))
}

func (s setup) model() porcupine.Model {
	if s.total == 0 {
		return model(most, 1<<30, s.waits)
	}
	return model(most, s.total, s.waits)
}

// recorder makes one client's calls.
type recorder struct {
	l     semaphore
	id    int
	now   *atomic.Int64
	ops   []porcupine.Operation
	rng   *rand.Rand
	setup setup
}

// note makes a call and records its result.
func (r *recorder) note(c call, do func() bool) bool {
	begin := r.now.Add(1)
	out := do()
	r.ops = append(r.ops, porcupine.Operation{ClientId: r.id, Input: c, Call: begin, Output: out, Return: r.now.Add(1)})
	runtime.Gosched()
	return out
}

func (r *recorder) play() {
	for range rounds {
		if r.id == 0 && r.rng.IntN(3) == 0 {
			limit := 3 + r.rng.IntN(most-2)
			r.note(call{setLimit, limit}, func() bool { return r.l.SetLimit(limit) == nil })
		}
		r.take(1 + r.rng.IntN(3))
	}
}

// take takes units, and gives them back.
func (r *recorder) take(n int) {
	var p inflight.Permit
	c := call{try, n}
	do := func() bool {
		var err error
		p, err = r.l.TryAcquire("a", n)
		return err == nil
	}
	if r.setup.waits && r.rng.IntN(2) == 0 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if r.rng.IntN(4) == 0 {
			go cancel()
		}
		c.kind = wait
		do = func() bool {
			var err error
			p, err = r.l.Acquire(ctx, "a", n)
			return err == nil
		}
	}
	if !r.note(c, do) {
		return
	}
	r.note(call{release, n}, func() bool { p.Release(); return true })
	if r.rng.IntN(2) == 0 {
		r.note(call{releaseAgain, n}, func() bool { p.Done(inflight.Dropped); return true })
	}
}

// record plays one history.
func (s setup) record(l semaphore, seed uint64) (ops []porcupine.Operation) {
	var now atomic.Int64
	var wg sync.WaitGroup
	all := make([]*recorder, clients)
	for i := range all {
		all[i] = &recorder{l: l, id: i, now: &now, rng: rand.New(rand.NewPCG(seed, uint64(i))), setup: s}
		wg.Go(all[i].play)
	}
	if s.total == 0 { // other keys would take units of Total, unknown to the model
		wg.Go(func() { disturb(l) })
	}
	wg.Wait()
	for _, r := range all {
		ops = append(ops, r.ops...)
	}
	return ops
}

// disturb invents keys, so the table forgets others.
func disturb(l semaphore) {
	for i := range rounds * 2 {
		if p, err := l.TryAcquire(fmt.Sprint(i), 1); err == nil {
			p.Release()
		}
		runtime.Gosched()
	}
}

func overlap(ops []porcupine.Operation) bool {
	for i, a := range ops {
		for _, b := range ops[:i] {
			if a.ClientId != b.ClientId && a.Call < b.Return && b.Call < a.Return {
				return true
			}
		}
	}
	return false
}

func TestConcurrentCallsAreLinearizable(t *testing.T) {
	for _, s := range setups {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			seed, overlapping := rand.Uint64(), 0
			for n := range uint64(histories) {
				ops := s.record(s.limiter(), seed+n)
				if overlap(ops) {
					overlapping++
				}
				require.True(t, porcupine.CheckOperations(s.model(), ops), "seed %d, history %d:\n%v", seed, n, ops)
			}
			assert.Greater(t, overlapping, histories/10, "nothing is proved by calls that come one after the other")
		})
	}
}

// ---- the check finds broken limiters ----

// forgetful first checks and acts later, and gives nothing back.
type forgetful struct {
	*inflight.Limiter[string]
	mu   sync.Mutex
	held int
	most int
}

func (f *forgetful) TryAcquire(key string, n int) (inflight.Permit, error) {
	if key != "a" {
		return f.Limiter.TryAcquire(key, n)
	}
	f.mu.Lock()
	fits := f.held+n <= f.most // the check
	f.mu.Unlock()
	runtime.Gosched()
	if !fits {
		return inflight.Permit{}, context.Canceled
	}
	f.mu.Lock()
	f.held += n // the act; it is never undone
	f.mu.Unlock()
	return inflight.Permit{}, nil
}

func TestBrokenSemaphoresAreFoundOut(t *testing.T) {
	s := setups[0]
	for n := range uint64(histories) {
		broken := &forgetful{Limiter: s.limiter(), most: most}
		if !porcupine.CheckOperations(s.model(), s.record(broken, n)) {
			return
		}
	}
	t.Errorf("%d histories, and not one was wrong", histories)
}
