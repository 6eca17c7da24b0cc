package overload

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var firstFleet = flag.Uint64("first-fleet", 1, "seed of the first fleet")

// member is one process of a fleet. It counts its answers while records is set.
type member struct {
	Gate
	skew    time.Duration // how far its clock is ahead
	weight  float64       // its share of the requests
	records bool
	good    int
	times   []time.Duration
}

// Enter implements Gate.
func (m *member) Enter(now time.Duration, r *Request) bool { return m.Gate.Enter(now+m.skew, r) }

// Leave implements Gate.
func (m *member) Leave(now time.Duration, r *Request, o inflight.Outcome) {
	if m.records {
		m.times = append(m.times, now-r.Sent)
		if o == inflight.Success {
			m.good++
		}
	}
	m.Gate.Leave(now+m.skew, r, o)
}

// balancer sends each request to a random process.
type balancer struct {
	members []*member
	rng     *rand.Rand
}

// Enter implements Gate.
func (b *balancer) Enter(now time.Duration, r *Request) bool {
	sum := 0.0
	for _, m := range b.members {
		sum += m.weight
	}
	at := b.rng.Float64() * sum
	for _, m := range b.members {
		if at -= m.weight; at < 0 || m == b.members[len(b.members)-1] {
			r.via = m
			break
		}
	}
	return r.via.Enter(now, r)
}

// Leave implements Gate.
func (b *balancer) Leave(now time.Duration, r *Request, o inflight.Outcome) { r.via.Leave(now, r, o) }

// fleet simulates processes in front of one backend. They do not
// communicate. The backend's latency without a queue is the service time.
type fleet struct {
	world *World
	balancer
}

const epoch = 500_000 * time.Hour // the time on the processes' common clock

func newFleet(seed uint64, processes int, skew time.Duration, p Phase) *fleet {
	f := &fleet{balancer: balancer{rng: rand.New(rand.NewPCG(seed, 9))}}
	for range processes {
		f.add(NewLimiter(1000, inflight.Learn(nil)), skew, 1)
	}
	f.world = NewWorld(&f.balancer, seed)
	f.world.Begin(p)
	return f
}

func (f *fleet) add(gate Gate, skew time.Duration, weight float64) {
	f.members = append(f.members, &member{Gate: gate, skew: epoch + time.Duration((2*f.rng.Float64()-1)*float64(skew)), weight: weight})
}

// measure simulates for some time. It returns the goodput as a share of the capacity,
// the median latency, and each member's answers as a share of an equal part, sorted.
func (f *fleet) measure(d time.Duration) (goodput float64, median time.Duration, shares []float64) {
	for _, m := range f.members {
		m.records, m.good, m.times = true, 0, nil
	}
	f.world.Tally = Tally{}
	f.world.Play(d)
	var times []time.Duration
	for _, m := range f.members {
		times = append(times, m.times...)
		shares = append(shares, float64(m.good)*float64(len(f.members))/float64(f.world.Good))
	}
	slices.Sort(times)
	slices.Sort(shares)
	return float64(f.world.Good) / d.Seconds() / f.world.phase.Capacity(), times[len(times)/2], shares
}

// idle is the backend's latency without a queue.
const idle = 50 * time.Millisecond

func fleetBackend(load float64) Phase {
	return Phase{Servers: 80, Service: idle, Spread: Exponential, Load: load, Leave: 2 * time.Second}
}

// Processes use the whole backend without communicating. They keep its
// queue short and get about equal shares, even if their clocks differ.
func TestProcessesInFrontOfOneBackendShareIt(t *testing.T) {
	testsize.Arithmetic(t)
	t.Parallel()
	for _, test := range []struct {
		processes int
		skew      time.Duration
	}{{3, 0}, {20, 0}, {8, 100 * time.Millisecond}, {8, 0}, {8, 500 * time.Millisecond}}[:testsize.Of(3, 5)] {
		for seed := *firstFleet; seed < *firstFleet+uint64(testsize.Of(1, 5)); seed++ {
			name := fmt.Sprintf("%d processes, clocks differ by %v, seed %d", test.processes, test.skew, seed)
			f := newFleet(seed, test.processes, test.skew, fleetBackend(1.5))
			f.world.Play(4 * time.Minute)
			goodput, median, shares := f.measure(2 * time.Minute)
			t.Logf("%s: goodput %.3f, median %v, shares %.2f", name, goodput, median.Round(time.Millisecond), shares)
			assert.Greater(t, goodput, 0.95, name)
			assert.Less(t, median, 3*idle, name)
			outside := 0
			for _, share := range shares {
				if share < 0.7 || share > 1.3 {
					outside++
				}
			}
			assert.LessOrEqual(t, outside, 1+test.processes/5, "%s: %.2f", name, shares)
			assert.Greater(t, shares[0], 0.45, name)
		}
	}
}

// A process started beside seven others gets its share within a minute, and the others keep theirs.
func TestANewProcessHasItsShareWithinAMinute(t *testing.T) {
	testsize.Arithmetic(t)
	t.Parallel()
	for seed := *firstFleet; seed < *firstFleet+uint64(testsize.Of(1, 5)); seed++ {
		f := newFleet(seed, 7, 0, fleetBackend(1.5))
		f.world.Play(3 * time.Minute)
		f.add(NewLimiter(1000, inflight.Learn(nil)), 0, 1)
		f.world.Play(time.Minute)
		goodput, median, _ := f.measure(2 * time.Minute)
		share := float64(f.members[7].good) * 8 / float64(f.world.Good)
		t.Logf("seed %d: goodput %.3f, median %v, share %.2f", seed, goodput, median.Round(time.Millisecond), share)
		assert.Greater(t, goodput, 0.95)
		assert.Less(t, median, 3*idle)
		assert.InDelta(t, 1, share, 0.5)
	}
}

// Some clients have no limit. They send half or four fifths of the requests, and use 80
// % of the capacity. The processes with a limit keep the queue as short as they can.
func TestClientsWithoutALimitDoNotRaiseTheBaseline(t *testing.T) {
	testsize.Arithmetic(t)
	t.Parallel()
	for _, test := range []struct {
		load, weight float64 // the weight of the clients without a limit
		processes    int
	}{{1.6, 1, 1}, {1, 4, 1}, {1, 4, 4}} {
		for seed := *firstFleet; seed < *firstFleet+uint64(testsize.Of(1, 5)); seed++ {
			name := fmt.Sprintf("load %v, weight %v, %d processes, seed %d", test.load, test.weight, test.processes, seed)
			f := newFleet(seed, test.processes, 0, fleetBackend(test.load))
			f.add(&Fixed{Limit: 1 << 30}, 0, test.weight*float64(test.processes))
			f.world.Play(3 * time.Minute)
			goodput, median, _ := f.measure(2 * time.Minute)
			t.Logf("%s: goodput %.3f, median %v", name, goodput, median.Round(time.Millisecond))
			assert.Greater(t, goodput, 0.95, name)
			assert.Less(t, median, 3*idle, name)
		}
	}
}

// Cheap and expensive work share one key. The limit suits both kinds.
func TestCheapAndExpensiveWorkShareALimit(t *testing.T) {
	testsize.Arithmetic(t)
	t.Parallel()
	for _, test := range []struct {
		servers         int
		cheap           time.Duration
		share, expenses float64 // expenses is the ratio of expensive work's time to cheap work's
	}{{20, time.Millisecond, 0.01, 1000}, {60, time.Millisecond, 0.01, 1000}, {20, 5 * time.Millisecond, 0.02, 200}, {20, 10 * time.Millisecond, 0.05, 50}} {
		sum, n := 0.0, testsize.Of(1, 8)
		for seed := range uint64(n) {
			p := Phase{Servers: test.servers, Service: test.cheap, Load: 1.5, SlowShare: test.share, SlowBy: test.expenses}
			play := func(g Gate) float64 {
				w := NewWorld(g, seed+*firstFleet)
				w.Begin(p)
				w.Play(time.Minute)
				w.judge(2*time.Minute, seed)
				return float64(w.Good)
			}
			sum += play(NewLimiter(1000, inflight.Learn(nil))) / play(&Fixed{Limit: 2 * test.servers}) / float64(n)
		}
		t.Logf("%d servers, %v and %v: %.3f of a fixed limit", test.servers, test.cheap, time.Duration(float64(test.cheap)*test.expenses), sum)
		assert.Greater(t, sum, 0.93)
	}
}
