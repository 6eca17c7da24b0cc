package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var joins = flag.Int("joins", testsize.Of(24, 600), "the number of random mixes whose tenants join and leave")

// settles is a tenant's manner: it reserves an estimate in line, works, and settles at less.
const settles = polls + 1

// guest is a tenant of a [gathering]. While it is present, it requests more than its share.
type guest struct {
	member
	there []bool // whether it is present in each phase

	grants []grant
	late   int // how often a denial's wait exceeded RetryAfter, by more than a tenth and 50 ms
	waits  int
}

// grant is how many units a tenant got at an instant, at their real cost.
type grant struct {
	at    time.Duration
	units int
}

// gathering is a limit. Its tenants change between phases.
type gathering struct {
	seed        uint64
	rate, burst int
	refill      time.Duration
	guests      []*guest
	ends        []time.Duration // the phases' ends

	mu    sync.Mutex
	start time.Time
	total []grant
}

// newGathering returns 2 to 15 tenants, and 3 to 6 phases of four to eight
// refills. The first phase often has only one tenant, which uses the whole limit.
func newGathering(seed uint64) *gathering {
	r := rand.New(rand.NewPCG(seed, 79))
	x := &gathering{seed: seed, burst: int(between(r, 2_000, 120_000))}
	x.rate = max(1, int(float64(x.burst)/between(r, 1, 60)))
	x.refill = time.Duration(float64(x.burst) / float64(x.rate) * 1e9)
	phases := 3 + r.IntN(4)
	for range phases {
		length := time.Duration((4 + 4*r.Float64()) * float64(x.refill))
		if n := len(x.ends); n > 0 {
			length += x.ends[n-1]
		}
		x.ends = append(x.ends, length)
	}
	heaviest, weights := []int{1, 3, 10}[r.IntN(3)], 0
	for range 2 + r.IntN(14) {
		g := &guest{member: member{manner: []manner{waits, obeys, polls, settles}[r.IntN(4)], weight: 1 + r.IntN(heaviest), callers: 1 + r.IntN(4)}}
		g.every = x.refill / 300
		if g.manner == obeys || g.manner == polls {
			g.callers = 1
		}
		weights += g.weight
		x.guests = append(x.guests, g)
	}
	for i, g := range x.guests {
		g.cost = max(1, int(float64(x.burst)*float64(g.weight)/float64(weights)/(20+80*r.Float64())))
		for phase := range phases {
			var there bool
			switch phase {
			case 0:
				there = i == 0 || seed%2 == 0 && r.IntN(4) == 0
			case 1:
				there = i == 0 || r.IntN(5) > 0
			default:
				there = i == phase%len(x.guests) || r.IntN(5) > 1
			}
			g.there = append(g.there, there)
		}
	}
	return x
}

// until returns whether a guest is present at an instant, and the instant until which that stays so.
func (x *gathering) until(g *guest, at time.Duration) (there bool, end time.Duration) {
	phase, _ := slices.BinarySearch(x.ends, at+1)
	if phase == len(x.ends) {
		return false, at + time.Hour
	}
	last := phase
	for last+1 < len(x.ends) && g.there[last+1] == g.there[phase] {
		last++
	}
	return g.there[phase], x.ends[last]
}

func (x *gathering) granted(g *guest, units int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := grant{time.Since(x.start), units}
	g.grants, x.total = append(g.grants, now), append(x.total, now)
}

// run plays a gathering in virtual time, in a bubble.
func (x *gathering) run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x.start = time.Now()
		l, err := fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(x.rate), x.burst), &fair.Options[int]{Weight: func(key int) int { return x.guests[key].weight }})
		require.NoError(t, err)
		end := x.ends[len(x.ends)-1]
		ctx, stop := context.WithTimeout(t.Context(), end)
		defer stop()
		var all sync.WaitGroup
		for key, g := range x.guests {
			for caller := range g.callers {
				r := rand.New(rand.NewPCG(x.seed, uint64(100*key+caller)))
				all.Go(func() {
					time.Sleep(time.Duration(r.Int64N(1e7)))
					for ctx.Err() == nil {
						there, until := x.until(g, time.Since(x.start))
						phase, leave := context.WithTimeout(ctx, until-time.Since(x.start)+1)
						if there {
							x.call(phase, &all, r, l, key)
						} else {
							<-phase.Done()
						}
						leave()
					}
				})
			}
		}
		time.Sleep(end)
		stop()
		all.Wait()
	})
}

// call makes a guest's next call. It returns when the call passes or the context ends.
func (x *gathering) call(ctx context.Context, all *sync.WaitGroup, r *rand.Rand, l *fair.Limiter[int], key int) {
	g := x.guests[key]
	switch g.manner {
	case waits:
		if l.Wait(ctx, key, g.cost) == nil {
			x.granted(g, g.cost)
		} else {
			<-ctx.Done() // the guest leaves before there is room
		}
	case settles:
		res, err := l.Reserve(ctx, key, g.cost, time.Hour)
		if err != nil || !res.Allowed {
			<-ctx.Done()
			return
		}
		actual := max(1, int(float64(g.cost)*(0.4+0.6*r.Float64())))
		x.granted(g, actual)
		work := time.Duration(float64(x.refill) / 10 * r.Float64())
		all.Go(func() {
			time.Sleep(work)
			_ = res.Settle(actual)
		})
	case polls:
		for l.Allow(key, g.cost) {
			x.granted(g, g.cost)
		}
		time.Sleep(time.Duration((0.5 + r.Float64()) * float64(g.every)))
	case obeys:
		x.obey(ctx, l, key)
	}
}

// obey repeats a guest's call, each time after RetryAfter, until it passes.
// It records whether the call came much later than the first RetryAfter.
func (x *gathering) obey(ctx context.Context, l *fair.Limiter[int], key int) {
	g, began, first := x.guests[key], time.Now(), time.Duration(0)
	for {
		d, _ := l.Take(ctx, key, g.cost)
		if d.Allowed {
			x.granted(g, g.cost)
			if first > 0 {
				g.waits++
				if time.Since(began) > first+first/10+50*time.Millisecond {
					g.late++
				}
			}
			return
		}
		if first == 0 {
			first = d.RetryAfter
		}
		select {
		case <-time.After(d.RetryAfter):
		case <-ctx.Done():
			return
		}
	}
}

// share returns how many units a guest's share has between two instants.
func (x *gathering) share(g *guest, from, to time.Duration) (units float64) {
	begin := time.Duration(0)
	for phase, end := range x.ends {
		if length := min(to, end) - max(from, begin); length > 0 && g.there[phase] {
			weights := 0
			for _, other := range x.guests {
				if other.there[phase] {
					weights += other.weight
				}
			}
			units += length.Seconds() * float64(x.rate) * float64(g.weight) / float64(weights)
		}
		begin = end
	}
	return units
}

// unitsBetween returns how many units were granted between two instants.
func unitsBetween(grants []grant, from, to time.Duration) (units float64) {
	i, _ := slices.BinarySearchFunc(grants, from, func(g grant, at time.Duration) int { return int(g.at - at) })
	for ; i < len(grants) && grants[i].at < to; i++ {
		units += float64(grants[i].units)
	}
	return units
}

// settled reports whether the tenants last changed at least 1.2 refills and 2 s before from, and stay the same until to.
func (x *gathering) settled(from, to time.Duration) bool {
	begin := time.Duration(0)
	for _, end := range x.ends {
		if begin+x.refill*6/5+2*time.Second <= from && to <= end {
			return true
		}
		begin = end
	}
	return false
}

// worst returns the smallest part of its share that a guest gets over two refills, measured from 1.2 refills after a change.
func (x *gathering) worst(g *guest) (part float64, measured bool) {
	part = 10
	for from := x.refill; from+2*x.refill <= x.ends[len(x.ends)-1]; from += x.refill / 4 {
		to := from + 2*x.refill
		there, until := x.until(g, from)
		if !there || until < to || !x.settled(from, to) {
			continue
		}
		part, measured = min(part, (unitsBetween(g.grants, from, to)+float64(g.cost))/x.share(g, from, to)), true
	}
	return part, measured
}

// barred returns the longest time without a grant while a guest was
// present, less the time that its share takes to pay for a cost.
func (x *gathering) barred(g *guest) (longest time.Duration) {
	begin := time.Duration(0)
	last := begin
	for phase, end := range x.ends {
		if g.there[phase] {
			if phase == 0 || !g.there[phase-1] {
				last = begin
			}
			each := time.Duration(float64(g.cost) / x.share(g, begin, end) * float64(end-begin))
			for _, granted := range g.grants {
				if begin <= granted.at && granted.at < end {
					longest, last = max(longest, granted.at-last-each), granted.at
				}
			}
			longest = max(longest, end-last-each)
		}
		begin = end
	}
	return longest
}

// above compares the grants in each interval t with burst + rate·t, and returns the maximum excess.
func (x *gathering) above() (units float64) {
	sum, lowest := 0.0, 0.0
	for _, g := range x.total {
		lowest = min(lowest, sum-float64(x.rate)*g.at.Seconds())
		sum += float64(g.units)
		units = max(units, sum-float64(x.rate)*g.at.Seconds()-lowest-float64(x.burst))
	}
	return units
}

func (x *gathering) String() string {
	text := fmt.Sprintf("gathering %d: %d a second, burst %d, refill %v, phases end at %v", x.seed, x.rate, x.burst, x.refill.Round(time.Millisecond), x.ends)
	for i, g := range x.guests {
		part, _ := x.worst(g)
		text += fmt.Sprintf("\n%d: manner %d, cost %d, weight %d, %d callers, there %v: %.3f of its share", i, g.manner, g.cost, g.weight, g.callers, g.there, part)
	}
	return text
}

// Tenants join and leave. A tenant may use units unwanted by all others. After a refill, it
// loses nothing for that. Soon after each change, all waiting tenants get their shares again.
func TestTenantsThatWaitGetTheirSharesSoonAfterOthersJoinAndLeave(t *testing.T) {
	var mu sync.Mutex
	parts, obeying, late, waited := []float64{}, []float64{}, 0, 0
	t.Run("gatherings", func(t *testing.T) {
		for i := range uint64(*joins) {
			seed := testsize.Seed(*firstMix + i)
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				x := newGathering(seed)
				x.run(t)
				mu.Lock()
				defer mu.Unlock()
				for i, g := range x.guests {
					late, waited = late+g.late, waited+g.waits
					if g.manner == polls {
						continue
					}
					assert.LessOrEqual(t, x.barred(g), x.refill*6/5, "guest %d of %v", i, x)
					switch part, measured := x.worst(g); {
					case !measured:
					case g.manner == obeys: // the window may end while the tenant is absent
						assert.GreaterOrEqual(t, part, 0.7, "guest %d of %v", i, x)
						obeying = append(obeying, part)
					default:
						assert.GreaterOrEqual(t, part, 0.93, "guest %d of %v", i, x)
						parts = append(parts, part)
					}
				}
				end := x.ends[len(x.ends)-1]
				assert.GreaterOrEqual(t, unitsBetween(x.total, x.refill, end), 0.99*float64(x.rate)*(end-x.refill).Seconds(), "%v", x)
				assert.LessOrEqual(t, x.above(), 0.001, "%v", x)
			})
		}
	})
	slices.Sort(parts)
	slices.Sort(obeying)
	require.NotEmpty(t, parts)
	require.NotEmpty(t, obeying)
	t.Logf("%d tenants that wait: %.3f of their share at least, %.3f in 95 %%; %d that obey RetryAfter: %.3f at least, %.3f in 99 %%; %d of %d waits later than RetryAfter",
		len(parts), parts[0], parts[len(parts)/20], len(obeying), obeying[0], obeying[len(obeying)/100], late, waited)
	assert.LessOrEqual(t, late, waited/200)
}
