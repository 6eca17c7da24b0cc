package linearizability

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
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

const (
	histories = 1000 // per algorithm and table
	phases    = 4
	clients   = 4
	calls     = 3 // per client and phase
)

var limits = []ratelimit.Limit{
	ratelimit.TokenBucket(ratelimit.PerSecond(3), 4),
	ratelimit.LeakyBucket(ratelimit.PerSecond(3), 4),
	ratelimit.FixedWindow(ratelimit.PerSecond(4)),
	ratelimit.SlidingLog(ratelimit.PerSecond(4)),
	ratelimit.SlidingCounter(ratelimit.PerSecond(4)),
}

// yielding is a clock that lets other goroutines run when it is read.
// A decision reads it between the key's lookup and the key's lock.
type yielding struct{ now, reads atomic.Int64 }

func (c *yielding) Now() time.Duration {
	if c.reads.Add(1)%3 == 0 {
		runtime.Gosched()
	}
	return time.Duration(c.now.Load())
}

// table is a way to make room for keys, and how many evictions a history may have.
type table struct {
	name      string
	opts      ratelimit.Options[string]
	keys      int
	invented  bool // whether unrelated keys arrive throughout
	evictions func(s ratelimit.Stats) int
}

var tables = []table{
	{"roomy", ratelimit.Options[string]{}, 3, false, func(ratelimit.Stats) int { return 0 }},
	{"evicting", ratelimit.Options[string]{MaxKeys: 3}, 3, true, func(s ratelimit.Stats) int { return int(s.Evicted) }},
	{"refusing", ratelimit.Options[string]{MaxKeys: 2, OnFull: ratelimit.RefuseNew}, 3, false, func(ratelimit.Stats) int { return -1 }},
}

func TestConcurrentCallsAreLinearizable(t *testing.T) {
	for _, limit := range limits {
		for _, table := range tables {
			t.Run(fmt.Sprintf("%v/%s", limit.Algorithm, table.name), func(t *testing.T) {
				t.Parallel()
				prove(t, limit, table)
			})
		}
	}
}

func prove(t *testing.T, limit ratelimit.Limit, table table) {
	seed, oracle, overlapping, pressed := rand.Uint64(), newOracle(limit), 0, 0
	played := testsize.Of(histories/10, histories)
	for n := range played {
		clock, opts := new(yielding), table.opts
		opts.Clock = clock
		opts.LimitFor = func(string) (l ratelimit.Limit) { runtime.Gosched(); return l }
		l := ratelimit.Must(ratelimit.New(limit, &opts))
		ops := record(l, clock, table, rand.New(rand.NewPCG(seed, uint64(n))))
		if overlap(ops) {
			overlapping++
		}
		if s := l.Stats(); s.Evicted+s.Refused > 0 {
			pressed++
		}
		model := oracle.model(table.evictions(l.Stats()))
		require.True(t, porcupine.CheckOperations(model, ops), "seed %d, history %d:\n%s", seed, n, listing(model, ops))
	}
	t.Logf("%d histories, %d with calls that overlap on one key, %d with keys evicted or refused", played, overlapping, pressed)
	assert.Greater(t, overlapping, played/10, "nothing is proved by calls that come one after the other")
	assert.Equal(t, table.opts.MaxKeys > 0, pressed > played/10, "%d histories had keys evicted or refused", pressed)
}

// record plays one history.
func record(l limiter, clock *yielding, table table, rng *rand.Rand) (ops []porcupine.Operation) {
	var now atomic.Int64 // numbers the beginnings and ends of calls in order
	for range phases {
		at := clock.now.Add(rng.Int64N(int64(600 * time.Millisecond)))
		var wg sync.WaitGroup
		mine := make([][]porcupine.Operation, clients)
		for i := range clients {
			todo := plan(rng, table.keys, time.Duration(at))
			wg.Go(func() { mine[i] = run(l, i, todo, &now) })
		}
		wg.Go(func() { disturb(l, table) })
		wg.Wait()
		for _, m := range mine {
			ops = append(ops, m...)
		}
	}
	return ops
}

// plan draws a client's calls in one phase.
func plan(rng *rand.Rand, keys int, at time.Duration) []call {
	todo := make([]call, calls)
	for i := range todo {
		c := call{allow, string(rune('a' + rng.IntN(keys))), 1 + rng.IntN(3), at}
		switch d := rng.IntN(20); {
		case d == 0:
			c.kind = reset
		case d < 4:
			c.kind, c.n = adjust, rng.IntN(8)-3
		case d < 14:
			c.kind = take
		}
		todo[i] = c
	}
	return todo
}

func run(l limiter, client int, todo []call, now *atomic.Int64) (ops []porcupine.Operation) {
	for _, c := range todo {
		begin := now.Add(1)
		a := c.on(l)
		ops = append(ops, porcupine.Operation{ClientId: client, Input: c, Call: begin, Output: a, Return: now.Add(1)})
		runtime.Gosched()
	}
	return ops
}

// disturb sweeps, and invents keys.
func disturb(l limiter, table table) {
	for i := range calls {
		l.Sweep()
		if table.invented && i == 0 {
			l.Allow("invented", 1)
		}
		runtime.Gosched()
	}
}

// overlap reports whether two calls on one key overlapped.
func overlap(ops []porcupine.Operation) bool {
	for i, a := range ops {
		for _, b := range ops[:i] {
			if a.Input.(call).key == b.Input.(call).key && a.Call < b.Return && b.Call < a.Return {
				return true
			}
		}
	}
	return false
}

// listing formats a history for a failure.
func listing(m porcupine.Model, ops []porcupine.Operation) (s string) {
	for _, op := range ops {
		s += fmt.Sprintf("client %d, %d to %d: %s\n", op.ClientId, op.Call, op.Return, m.DescribeOperation(op.Input, op.Output))
	}
	return s
}

// ---- broken limiters are detected ----

// checkThenAct checks whether the cost fits, releases the lock, and then spends the cost.
type checkThenAct struct{ *ratelimit.Keyed[string] }

func (l checkThenAct) Allow(key string, cost int) bool {
	d, _ := l.Peek(context.Background(), key, cost)
	runtime.Gosched()
	return d.Allowed && l.Adjust(context.Background(), key, cost) == nil
}

// sweepsLive drops keys whose spending still counts.
type sweepsLive struct{ *ratelimit.Keyed[string] }

func (l sweepsLive) Sweep() int {
	l.Reset(context.Background(), "a")
	return 1
}

func TestBrokenLimitersAreFoundOut(t *testing.T) {
	for name, broken := range map[string]func(*ratelimit.Keyed[string]) limiter{
		"a check and a later act":  func(l *ratelimit.Keyed[string]) limiter { return checkThenAct{l} },
		"a sweep that drops spent": func(l *ratelimit.Keyed[string]) limiter { return sweepsLive{l} },
	} {
		for _, limit := range limits {
			for _, table := range tables {
				t.Run(fmt.Sprintf("%s/%v/%s", name, limit.Algorithm, table.name), func(t *testing.T) {
					assert.True(t, found(limit, table, broken), "%d histories, and not one was wrong", histories)
				})
			}
		}
	}
}

func found(limit ratelimit.Limit, table table, broken func(*ratelimit.Keyed[string]) limiter) bool {
	oracle := newOracle(limit)
	for n := range histories {
		clock, opts := new(yielding), table.opts
		opts.Clock = clock
		l := ratelimit.Must(ratelimit.New(limit, &opts))
		ops := record(broken(l), clock, table, rand.New(rand.NewPCG(1, uint64(n))))
		if !porcupine.CheckOperations(oracle.model(table.evictions(l.Stats())), ops) {
			return true
		}
	}
	return false
}
