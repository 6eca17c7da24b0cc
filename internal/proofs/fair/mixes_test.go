package main

import (
	"container/heap"
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/internal/dev/chart"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var (
	mixes    = flag.Int("mixes", testsize.Of(16, 600), "the number of random mixes")
	firstMix = flag.Uint64("first", 0, "the `seed` of the first mix")
	mixFile  = flag.String("picture", "", "the `file` for a picture of all tenants' parts; none if empty")
)

// manner is a tenant's behaviour. In each manner, a tenant requests more
// than its share: it calls again at once after a grant, except in polls.
type manner int

const (
	waits  manner = iota // calls Wait
	obeys                // calls Take, and again after RetryAfter
	rounds               // calls Take, and again after RetryAfter in whole seconds, rounded up
	polls                // calls Take every few milliseconds, and ignores RetryAfter
)

func (m manner) String() string {
	return [...]string{"waits", "obeys RetryAfter", "obeys it in whole seconds", "polls"}[m]
}

// member is a tenant of a mix.
type member struct {
	manner       manner
	cost, weight int
	callers      int           // how many of its calls are in Wait at the same time
	every        time.Duration // the pause between two polls

	on, off, phase time.Duration // it is in turn present for on, and absent for off; if on is 0, it is always present

	served float64 // how many units it was granted while they were measured
	due    float64 // its share of the rate
}

// mix is a limit, and the tenants sharing it.
type mix struct {
	seed         uint64
	rate, burst  int
	members      []*member
	warm, length time.Duration
	spent        float64
}

func (m *member) here(at time.Duration) bool { return m.on == 0 || (at+m.phase)%(m.on+m.off) < m.on }

// next returns how long it takes until the member leaves or comes.
func (m *member) next(at time.Duration) time.Duration {
	p := (at + m.phase) % (m.on + m.off)
	if p < m.on {
		return m.on - p
	}
	return m.on + m.off - p
}

// part returns the part of its share that a member got, to within one cost.
func (m *member) part() float64 { return (m.served + float64(m.cost)) / m.due }

func (m *member) ofBurst(x *mix) float64 { return float64(m.cost) / float64(x.burst) }

// promised returns the minimum part of a member's share, or 0 if nothing is promised.
func (m *member) promised(x *mix) float64 {
	switch {
	case m.manner == polls, m.on > 0: // a member that comes and goes burdens the others
		return 0
	case m.due < 20*float64(m.cost): // so few costs cannot be measured
		return 0
	case m.manner == waits, m.ofBurst(x) <= 0.1:
		return 0.97
	case m.ofBurst(x) <= 0.5:
		return 0.90
	}
	return 0
}

func (x *mix) String() string {
	text := fmt.Sprintf("mix %d: %d a second, burst %d, for %v: %.1f %% spent", x.seed, x.rate, x.burst, x.length.Round(time.Second), 100*x.spentPart())
	for i, m := range x.members {
		text += fmt.Sprintf("\n%d %s: %d units, weight %d, %d callers, every %v, on %v, off %v: %.1f %% of its share",
			i, m.manner, m.cost, m.weight, m.callers, m.every.Round(time.Millisecond), m.on.Round(time.Millisecond), m.off.Round(time.Millisecond), 100*m.part())
	}
	return text
}

func (x *mix) spentPart() float64 { return x.spent / float64(x.rate) / x.length.Seconds() }

// between returns a random number with an evenly distributed logarithm.
func between(r *rand.Rand, least, most float64) float64 {
	return least * math.Exp(r.Float64()*math.Log(most/least))
}

// newMix returns 2 to 50 tenants with one to four manners. Their weights are up to 10. Their
// costs are from a thousandth of the burst to the whole burst. The burst is half a second to five
// seconds of the rate. If tenants come back after whole seconds, it is at least 2.5 seconds.
func newMix(seed uint64) *mix {
	r := rand.New(rand.NewPCG(seed, 77))
	x := &mix{seed: seed, burst: int(between(r, 200, 20_000))}
	burstTime := between(r, 0.5, 5)
	x.rate = max(1, int(float64(x.burst)/burstTime))
	manners := []manner{waits, obeys, polls}
	if burstTime >= 2.5 {
		manners = append(manners, rounds)
	}
	if r.IntN(3) > 0 {
		r.Shuffle(len(manners), func(i, j int) { manners[i], manners[j] = manners[j], manners[i] })
		manners = manners[:1+r.IntN(len(manners))]
	}
	tenants := int(between(r, 2, 51))
	largest := []float64{0.01, 0.1, 0.5, 1}[r.IntN(4)]
	smallest := max(0.001, min(float64(x.rate)/100/float64(x.burst), largest/2)) // limits the mix to 100 grants a second
	heaviest := []int{1, 10}[r.IntN(2)]
	visitors := r.IntN(2) == 0
	weights, calls := 0, 0.0
	for range tenants {
		m := &member{
			manner:  manners[r.IntN(len(manners))],
			cost:    max(1, int(between(r, smallest, largest)*float64(x.burst))),
			weight:  1 + r.IntN(heaviest),
			callers: 1 + r.IntN(3),
			every:   time.Duration(between(r, 1e6, 50e6)),
		}
		if visitors && r.IntN(3) == 0 && len(x.members) > 1 {
			m.on, m.off = time.Duration(between(r, 1e9, 30e9)), time.Duration(between(r, 1e9, 30e9))
			m.phase = time.Duration(r.Float64() * 60e9)
		}
		if m.manner == polls {
			calls += 1 / m.every.Seconds()
		}
		weights += m.weight
		x.members = append(x.members, m)
	}
	longest := 0.0 // the maximum time in which a member's share pays for a cost
	for _, m := range x.members {
		if calls > 300 { // more polls would take too long to simulate
			m.every = time.Duration(float64(m.every) * calls / 300)
		}
		longest = max(longest, float64(m.cost)*float64(weights)/float64(m.weight)/float64(x.rate))
	}
	x.warm = time.Duration((10 + min(100, burstTime*float64(tenants))) * 1e9)
	x.length = time.Duration(min(800, max(200, 60*longest)) * 1e9)
	return x
}

// run plays a mix in virtual time, in a bubble.
func (x *mix) run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opening := len(x.members) // one tenant takes most of the burst before the others come
		l, err := fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(x.rate), x.burst), &fair.Options[int]{
			Weight: func(key int) int {
				if key == opening {
					return 20
				}
				return x.members[key].weight
			},
		})
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(x.seed, 78))
		for l.Allow(opening, 1) {
		}
		start, end := time.Now(), x.warm+x.length
		var mu sync.Mutex
		count := func(m *member) {
			if at := time.Since(start); at >= x.warm && at < end {
				mu.Lock()
				defer mu.Unlock()
				m.served += float64(m.cost)
				x.spent += float64(m.cost)
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), end)
		defer stop()
		var all sync.WaitGroup
		var queue calls
		for key, m := range x.members {
			first := time.Duration(r.Int64N(20e6))
			if m.manner != waits {
				queue = append(queue, call{first, key})
				continue
			}
			for range m.callers {
				all.Go(func() {
					time.Sleep(first)
					for ctx.Err() == nil {
						wait(ctx, l, key, m, start, count)
					}
				})
			}
		}
		heap.Init(&queue)
		for len(queue) > 0 && queue[0].at < end {
			time.Sleep(queue[0].at - time.Since(start))
			key := queue[0].key
			m := x.members[key]
			if at := time.Since(start); m.here(at) {
				queue[0].at += max(1, take(t, r, l, key, m, count))
			} else {
				queue[0].at += m.next(at)
			}
			heap.Fix(&queue, 0)
		}
		time.Sleep(end - time.Since(start))
		stop()
		all.Wait()
	})
	left, weights := float64(x.rate)*x.length.Seconds(), 0
	for _, m := range x.members {
		if m.on > 0 {
			left -= m.served
		} else {
			weights += m.weight
		}
	}
	for _, m := range x.members {
		m.due = left * float64(m.weight) / float64(weights)
	}
}

// wait makes one of a member's calls, with Wait.
func wait(ctx context.Context, l *fair.Limiter[int], key int, m *member, start time.Time, count func(*member)) {
	if m.on > 0 {
		at := time.Since(start)
		if !m.here(at) {
			time.Sleep(m.next(at))
			return
		}
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, m.next(at))
		defer stop()
	}
	if l.Wait(ctx, key, m.cost) == nil {
		count(m)
	} else {
		<-ctx.Done() // the member leaves before there is room
	}
}

// take makes a member's calls at one instant, and returns the pause until its next one.
func take(t *testing.T, r *rand.Rand, l *fair.Limiter[int], key int, m *member, count func(*member)) time.Duration {
	for {
		d, err := l.Take(t.Context(), key, m.cost)
		require.NoError(t, err)
		if d.Allowed {
			count(m)
		}
		switch {
		case m.manner == polls:
			return time.Duration((0.5 + r.Float64()) * float64(m.every))
		case d.Allowed:
		case m.manner == rounds:
			return (d.RetryAfter + time.Second - 1).Truncate(time.Second)
		default:
			return d.RetryAfter
		}
	}
}

// In any mix, a tenant gets its share if it waits or obeys RetryAfter.
func TestTenantsThatBehaveGetTheirSharesInRandomMixes(t *testing.T) {
	var mu sync.Mutex
	parts := map[string][]float64{}
	t.Run("mixes", func(t *testing.T) {
		for i := range uint64(*mixes) {
			seed := testsize.Seed(*firstMix + i)
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				x := newMix(seed)
				x.run(t)
				mu.Lock()
				defer mu.Unlock()
				greedy := false
				for i, m := range x.members {
					promised := m.promised(x)
					greedy = greedy || m.on == 0 && m.manner != polls && m.ofBurst(x) <= 0.5
					if promised == 0 {
						continue
					}
					assert.GreaterOrEqual(t, m.part(), promised, "member %d of %v", i, x)
					name := m.manner.String()
					parts[name] = append(parts[name], 100*m.part())
				}
				if greedy { // so that calls are denied at any time
					assert.GreaterOrEqual(t, x.spentPart(), 0.97, "%v", x)
				}
				assert.LessOrEqual(t, x.spent, float64(x.rate)*x.length.Seconds()+float64(x.burst), "%v", x)
			})
		}
	})
	for _, m := range []manner{waits, obeys, rounds} {
		p := parts[m.String()]
		slices.Sort(p)
		if len(p) > 0 {
			t.Logf("%d tenants: %s: %.1f %% of its share at least, %.1f %% in the middle", len(p), m, p[0], p[len(p)/2])
		}
	}
	if *mixFile != "" {
		require.NoError(t, os.WriteFile(*mixFile, []byte(mixPicture(parts)), 0o666))
	}
}

// mixPicture draws the tenants by manner, and by the part of their share that they got.
func mixPicture(parts map[string][]float64) string {
	const top, bottom = 96.0, 300.0
	c := chart.New(width, int(bottom)+60, "Shares in random mixes", "For each manner of asking, the part of its share that a tenant got, from the worst tenant to the best.")
	c.Text("heading", "start", left, 34, fmt.Sprintf("What tenants got of their shares in %d random mixes", *mixes))
	c.Text("muted", "start", left, 55, "Simulated: 2 to 50 tenants that wait, obey RetryAfter or poll, some of which come and go. Costs of up to half of the burst; waiters of any cost.")
	rank, share := chart.Linear(0, 100, left, right), chart.Linear(80, 120, bottom, top)
	for v := 80.0; v <= 120; v += 10 {
		c.Line("grid", left, share(v), right, share(v))
		c.Text("small", "end", left-8, share(v)+4, fmt.Sprint(v))
	}
	for v := 0.0; v <= 100; v += 20 {
		c.Text("small", "middle", rank(v), bottom+18, fmt.Sprint(v))
	}
	x := left
	for i, m := range []manner{waits, obeys, rounds} {
		class := []string{"a", "b", "c"}[i]
		c.Rect(class, x, 68, 10, 10)
		c.Text("small", "start", x+15, 77.5, m.String())
		x += 200
		var points []chart.Point
		p := parts[m.String()]
		for j := 0; j < len(p); j += max(1, len(p)/200) {
			points = append(points, chart.Point{X: rank(100 * float64(j) / float64(len(p))), Y: share(min(p[j], 120))})
		}
		c.Trace(class, points)
	}
	c.Text("small", "middle", (left+right)/2, bottom+40, "tenants, in % of all, the worst first; their part of their share, in %")
	return c.String()
}
