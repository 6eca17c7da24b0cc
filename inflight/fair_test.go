package inflight_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/inflight"
)

// tenant is a key. Its callers request units without end.
type tenant struct {
	key    string
	weight int
	most   int // a request's maximum; each request is for 1 to most units
	depth  int // how many of its callers wait at once; more than one release admits
	joins  int // after how many grants to all tenants it begins
	got    int // the units granted to it
}

// grant is a permit granted to a tenant.
type grant struct {
	who    *tenant
	permit inflight.Permit
	n      int
}

// contest is a competition of tenants for Total. It runs in a bubble.
type contest struct {
	l       *inflight.Limiter[string]
	rng     *rand.Rand
	tenants []*tenant
	grants  chan grant
	held    []grant
	count   int
}

func (c *contest) request(who *tenant) {
	n := 1 + c.rng.IntN(who.most)
	go func() {
		p, err := c.l.Acquire(context.Background(), who.key, n)
		if err != nil {
			panic(err)
		}
		c.grants <- grant{who, p, n}
	}()
	synctest.Wait()
}

// join starts the tenants whose time has come.
func (c *contest) join() {
	for _, who := range c.tenants {
		if who.joins == c.count {
			for range who.depth {
				c.request(who)
			}
		}
	}
}

// step releases one permit at random, and counts the units granted for it. A served caller makes its next request at once.
func (c *contest) step(served func(g grant)) {
	i := c.rng.IntN(len(c.held))
	c.held[i].permit.Release()
	c.held = append(c.held[:i], c.held[i+1:]...)
	synctest.Wait()
	for len(c.grants) > 0 {
		g := <-c.grants
		g.who.got += g.n
		c.count++
		c.held = append(c.held, g)
		served(g)
		c.join()
		c.request(g.who)
	}
}

// newContest returns a contest. At its beginning, a key outside it holds the whole Total.
func newContest(t *testing.T, rng *rand.Rand, total int, tenants []*tenant) *contest {
	weights := map[string]int{}
	for _, who := range tenants {
		weights[who.key] = who.weight
	}
	c := &contest{rng: rng, tenants: tenants, grants: make(chan grant, 1000)}
	c.l = newLimiter(t, total, &options{Total: total, MaxQueue: 1000, Weight: func(key string) int { return weights[key] }})
	for range total {
		c.held = append(c.held, grant{nil, take(t, c.l, "outsider", 1), 1})
	}
	c.join()
	return c
}

func (c *contest) end() {
	for _, g := range c.held {
		g.permit.Release()
	}
	for {
		synctest.Wait()
		if len(c.grants) == 0 {
			return
		}
		for len(c.grants) > 0 {
			(<-c.grants).permit.Release()
		}
	}
}

// spread is the range of a.got·b.weight − b.got·a.weight, for two tenants a and b, while both wait.
type spread struct{ low, high int }

func (s *spread) add(d int) { s.low, s.high = min(s.low, d), max(s.high, d) }

func TestSharesAreByWeightWithinTheLargestRequest(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			var tenants []*tenant
			largest := 1
			for i := range 2 + rng.IntN(4) {
				who := &tenant{key: fmt.Sprint(i), weight: 1 + rng.IntN(9), most: 1 + rng.IntN(6), depth: 8 + rng.IntN(3)}
				if i > 1 {
					who.joins = rng.IntN(60)
				}
				if i == 0 {
					who.depth = 50 // it floods its queue
				}
				tenants = append(tenants, who)
				largest = max(largest, who.most)
			}
			c := newContest(t, rng, largest+rng.IntN(8), tenants)
			defer c.end()
			spreads := make([]spread, len(tenants)*len(tenants))
			began := make([]int, len(spreads))
			for c.count < 150 {
				c.step(func(grant) {}) // callers served in the same step wake in any order
				for i, a := range tenants {
					for j, b := range tenants[:i] {
						k, d := i*len(tenants)+j, a.got*b.weight-b.got*a.weight
						if c.count <= max(a.joins, b.joins)+10 {
							began[k] = d
							continue
						}
						spreads[k].add(d - began[k])
					}
				}
			}
			for i, a := range tenants {
				for j, b := range tenants[:i] {
					s := spreads[i*len(tenants)+j]
					require.LessOrEqual(t, s.high-s.low, largest*(a.weight+b.weight), "seed %d: %+v and %+v: %+v, largest request %d", seed, *a, *b, s, largest)
				}
			}
		})
	}
}

func TestFloodMakesAnotherKeyWaitForOneRequestOfEachKeyAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		flood := &tenant{key: "flood", weight: 1, most: 3, depth: 300}
		second := &tenant{key: "second", weight: 1, most: 3, depth: 100}
		late := &tenant{key: "late", weight: 1, most: 1, depth: 1, joins: 40}
		c := newContest(t, rng, 10, []*tenant{flood, second, late})
		defer c.end()
		waited, longest := 0, 0 // the units granted to others since late was served
		for c.count < 300 {
			c.step(func(g grant) {
				switch {
				case g.who == late:
					waited = 0
				case c.count > late.joins:
					waited += g.n
					longest = max(longest, waited)
				}
			})
		}
		assert.LessOrEqual(t, longest, 2*(1+3)+3, "a unit of each, what their largest request is above it, and what one release lets in")
		assert.Greater(t, late.got, 30)
	})
}

func TestHeavierKeyGetsMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heavy, light := &tenant{key: "heavy", weight: 3, most: 1, depth: 9}, &tenant{key: "light", weight: 1, most: 1, depth: 90}
		c := newContest(t, rand.New(rand.NewPCG(1, 1)), 4, []*tenant{heavy, light})
		defer c.end()
		for heavy.got+light.got < 400 {
			c.step(func(grant) {})
		}
		assert.InDelta(t, 300, heavy.got, 1)
	})
}

func TestNewKeysThatKeepComingHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 1, &options{Total: 1, MaxQueue: 10})
		q := &line{l: l}
		callers := map[string]*caller{"holder": q.send("holder", "holder", 1)}
		send := func(name, key string) { callers[name] = q.send(name, key, 1) }
		for i := range 4 {
			send(fmt.Sprint("old ", i), "old")
		}
		for i := range 30 { // for each released permit, two new keys come
			send(fmt.Sprint("a", i), fmt.Sprint("a", i))
			send(fmt.Sprint("b", i), fmt.Sprint("b", i))
			callers[q.served[i]].release()
		}
		assert.Subset(t, q.served, []string{"old 0", "old 1", "old 2"}, "as many keys wait, so long is a round")
		for len(q.served) < len(callers) {
			callers[q.served[len(q.served)-1]].release()
		}
		callers[q.served[len(q.served)-1]].release()
	})
}

func TestKeyAtItsOwnLimitIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 2, &options{Total: 4, MaxQueue: 10})
		q := &line{l: l}
		a1, a2 := q.send("a1", "a", 1), q.send("a2", "a", 1)
		a3 := q.send("a3", "a", 1)
		assert.False(t, a3.done)
		b := take(t, l, "b", 2) // a waits for its own limit, not for Total
		c := q.send("c", "c", 1)
		refused(t, l, "d", 1)
		b.Release()
		synctest.Wait()
		assert.True(t, c.done)
		assert.False(t, a3.done, "its own limit holds")
		a1.release()
		assert.True(t, a3.done)
		for _, c := range []*caller{a2, a3, c} {
			c.release()
		}
	})
}

// Otherwise, the key's own units in flight would let others pass its large request without end.
func TestAKeyWhoseLimitIsTotalOrMoreIsNotPassedOver(t *testing.T) {
	for _, limit := range []int{4, 9} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, limit, &options{Total: 4, MaxQueue: 10})
			q := &line{l: l}
			a1, b1 := q.send("a1", "a", 3), q.send("b1", "b", 1)
			a2, b2 := q.send("a2", "a", 2), q.send("b2", "b", 1)
			b1.release()
			assert.False(t, b2.done, "what becomes free is kept for a")
			refused(t, l, "c", 1)
			a1.release()
			assert.True(t, a2.done)
			assert.True(t, b2.done)
			a2.release()
			b2.release()
		})
	}
}

func TestLargeRequestKeepsFreedUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 4, &options{Total: 4, MaxQueue: 10})
		q := &line{l: l}
		held := []inflight.Permit{take(t, l, "x", 1), take(t, l, "x", 1), take(t, l, "x", 1), take(t, l, "x", 1)}
		large := q.send("large", "a", 4)
		var small []*caller
		for i := range 5 {
			small = append(small, q.send("small", fmt.Sprint("b", i), 1))
		}
		for _, p := range held {
			assert.False(t, large.done)
			refused(t, l, "c", 1)
			p.Release()
			synctest.Wait()
		}
		assert.True(t, large.done)
		large.release()
		for _, c := range small {
			if c.done {
				c.release()
			}
		}
	})
}
