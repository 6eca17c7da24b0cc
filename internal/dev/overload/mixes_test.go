package overload

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var (
	mixes    = flag.Int("mixes", testsize.Of(12, 200), "how many random mixes of incidents to play; 100 take about a minute")
	firstMix = flag.Uint64("first-mix", 1, "seed of the first one")
)

// mix is a random backend, whose phases have several changes at once.
type mix struct {
	seed      uint64
	processes int
	service   time.Duration // the healthy backend's service time
	phases    []Phase
	names     []string
}

func (m mix) String() string {
	p := m.phases[0]
	return fmt.Sprintf("mix %d, %d processes, %d servers × %v %v, %.0f requests a second", m.seed, m.processes, p.Servers, m.service, p.Spread, p.Load*p.Capacity())
}

// drawMix returns a healthy phase and three others with up to three
// changes each, at random. The last phase may be healthy again.
func drawMix(seed uint64) mix {
	rng := rand.New(rand.NewPCG(seed, 8))
	rate := 40 * math.Pow(20, rng.Float64()) // requests a second
	service := time.Duration(float64(5*time.Millisecond) * math.Pow(40, rng.Float64()))
	m := mix{seed: seed, processes: []int{1, 1, 4, 8}[rng.IntN(4)], service: service}
	p := Phase{Service: service, Spread: Spread(rng.IntN(4)), FailAs: inflight.Dropped}
	p.Servers = max(1, m.processes, int(rate*service.Seconds()/(0.5+2*rng.Float64())))
	p.Load = rate / p.Capacity()
	m.phases, m.names = []Phase{p}, []string{"healthy"}
	for range 3 {
		q, names := p, []string{}
		used := map[int]bool{}
		for range 1 + rng.IntN(3) {
			k := rng.IntN(12)
			if used[k] || k <= 1 && (used[0] || used[1]) {
				continue
			}
			used[k] = true
			share := 0.1 + 0.6*rng.Float64()
			as := []inflight.Outcome{inflight.Dropped, inflight.Cancelled}[rng.IntN(2)]
			name := ""
			switch k {
			case 0:
				q.Fail, q.FailIn, name = share, time.Millisecond, fmt.Sprintf("%.0f %% quick 503", 100*share)
			case 1:
				q.Fail, q.FailIn, name = share, time.Duration((1+9*rng.Float64())*float64(service)), fmt.Sprintf("%.0f %% slow 503", 100*share)
				name += fmt.Sprintf(" after %v", q.FailIn)
			case 2:
				q.Hang, q.HangIn, q.HangAs = share*2/3, time.Duration((20+100*rng.Float64())*float64(service)), as
				name = fmt.Sprintf("%.0f %% hang for %v, %v", 100*q.Hang, q.HangIn, as)
			case 3:
				q.Short, q.ShortIn, name = share, time.Millisecond, fmt.Sprintf("%.0f %% with a deadline of 1 ms", 100*share)
			case 4:
				q.Leave, q.LeaveVary, q.Abort = time.Duration((4+20*rng.Float64())*float64(service)), true, rng.IntN(2) == 0
				name = fmt.Sprintf("clients leave after %v, abort %v", q.Leave, q.Abort)
			case 5:
				q.Retries, name = 1+rng.IntN(3), "retries"
			case 6:
				q.Cap, q.CapCost, name = max(m.processes, q.Servers), time.Duration(rng.Float64()*float64(service)/2), "a cap"
				name += fmt.Sprintf(" whose refusals cost %v", q.CapCost)
			case 7:
				by := math.Pow(10, 2*rng.Float64()-1)
				q.Service, name = time.Duration(by*float64(service)), fmt.Sprintf("latency × %.1f", by)
			case 8:
				by := math.Pow(5, 2*rng.Float64()-1)
				q.Servers, name = max(1, m.processes, int(by*float64(q.Servers))), fmt.Sprintf("servers × %.1f", by)
			case 9:
				q.Wave, q.WaveEach, name = 0.8, time.Duration(10+50*rng.IntN(2))*time.Second, "the load rises and falls"
			case 10:
				q.FailLate, name = share, fmt.Sprintf("%.0f %% fail after their work", 100*share)
			case 11:
				q.Refuse, name = true, "an outage"
			}
			names = append(names, name)
		}
		q.Load = rate / q.Capacity()
		m.phases, m.names = append(m.phases, q), append(m.names, strings.Join(names, " and "))
	}
	if rng.IntN(2) == 0 {
		m.phases[3], m.names[3] = p, "healthy again"
	}
	return m
}

const (
	mixSettles = time.Minute
	mixJudged  = 20 * time.Second
	mixBound   = 1000
)

// play simulates each phase, and returns its result.
func (m *mix) play(g Gate) (all []Result) {
	w := NewWorld(g, m.seed)
	for at, p := range m.phases {
		w.Begin(p)
		w.Play(mixSettles)
		w.reseed(m.seed + uint64(at)<<32)
		w.Tally = Tally{}
		w.Play(mixJudged)
		r := Result{Goodput: float64(w.Good) / mixJudged.Seconds()}
		if w.Good > 0 {
			r.Latency = w.Answers / time.Duration(w.Good)
		}
		if g, ok := g.(Gated); ok {
			_, r.Limit = g.State()
		}
		all = append(all, r)
	}
	return all
}

// best returns, for each phase, the result of a well-chosen fixed limit: the highest goodput without a long queue.
func (m *mix) best() []Result {
	best := make([]Result, len(m.phases))
	for limit := 1.0; limit <= mixBound; limit = math.Ceil(limit * 1.4) {
		for at, r := range m.play(&Fixed{Limit: int(limit)}) {
			b := &best[at]
			if r.Limit = int(limit); r.Goodput > 1.01*b.Goodput && (b.Goodput == 0 || r.Latency < 3*m.phases[at].mean() || float64(r.Latency) < 1.1*float64(b.Latency)) {
				*b = r
			}
		}
	}
	return best
}

// The test mixes incidents at random. Within a minute after a change, a limit has at least half the goodput
// of a fixed limit well chosen for this phase. There are a few exceptions: calls fail or hang after so many
// service times that a window with enough outcomes lasts for seconds. With -v, the test prints them.
func TestRandomMixesOfIncidentsLeaveHalfOfTheGoodput(t *testing.T) {
	testsize.Extra(t)
	type verdict struct {
		part float64
		text string
	}
	var mu sync.Mutex // guards all
	var all []verdict
	var wg sync.WaitGroup
	seeds := make(chan uint64)
	for range 2 {
		wg.Go(func() {
			for seed := range seeds {
				m := drawMix(seed)
				best := m.best()
				i := Incident{Service: m.service}
				f := new(Fleet)
				for range m.processes {
					f.Gates = append(f.Gates, NewLimiter(mixBound, i.Adaptive()))
				}
				for phase, r := range m.play(f) {
					b := best[phase]
					if b.Goodput < 5 {
						continue // so few answers are luck
					}
					v := verdict{r.Goodput / b.Goodput, fmt.Sprintf("%.2f [%v, phase %d: %s] %.0f/s in %v, of %.0f/s in %v with a limit of %d", r.Goodput/b.Goodput, m, phase, m.names[phase],
						r.Goodput, r.Latency.Round(time.Millisecond), b.Goodput, b.Latency.Round(time.Millisecond), b.Limit)}
					mu.Lock()
					all = append(all, v)
					mu.Unlock()
				}
			}
		})
	}
	for n := range *mixes {
		seeds <- *firstMix + uint64(n)
	}
	close(seeds)
	wg.Wait()
	v := all
	slices.SortFunc(v, func(a, b verdict) int { return int(math.Copysign(1, a.part-b.part)) })
	low := 0
	for _, x := range v {
		if x.part < 0.5 {
			low++
			t.Log(x.text)
		}
	}
	t.Logf("%d phases, %d below half; least %.2f, one in a hundred %.2f, in twenty %.2f, median %.2f", len(v), low, v[0].part, v[len(v)/100].part, v[len(v)/20].part, v[len(v)/2].part)
	assert.Greater(t, v[len(v)/20].part, 0.5, "one phase in twenty")
	assert.Greater(t, v[len(v)/4].part, 0.9, "one phase in four")
}
