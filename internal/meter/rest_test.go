package meter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// smallMeter returns a meter with a random algorithm and small figures.
func smallMeter(r *rand.Rand, per int64) *Meter {
	kind := TokenBucket + Kind(r.IntN(6))
	l := Limit{Kind: kind, Units: 1 + r.Int64N(12), Per: per, Burst: 1 + r.Int64N(12), Horizon: 1 << 40, Most: 1 << 50}
	if kind == Calendar {
		l.Windows = even(l.Per)
	}
	m := New(l)
	return &m
}

func TestALoweredLimitBarsNoKeyForLongerThanItsOwnRefill(t *testing.T) {
	lowered := 0
	for seed := range uint64(testsize.Of(40_000, 900_000)) {
		r := rand.New(rand.NewPCG(seed, 54))
		m, s, now := smallMeter(r, 1+r.Int64N(40)), State{}, int64(0)
		for range 1 + r.IntN(8) {
			for range r.IntN(5) {
				now += r.Int64N(30)
				m.Advance(&s, now)
				if n := m.Remaining(s, now); n > 0 {
					m.Allow(&s, now, 1+r.Int64N(n))
				}
			}
			if now += r.Int64N(8); r.IntN(9) == 0 {
				now += r.Int64N(200)
			}
			to := smallMeter(r, 1+r.Int64N(40))
			m.Advance(&s, now)
			spent, aside := m.spent(s, now), s.asideAt(now)
			if x := s.lostAt(now); x.units > 0 && !m.alike(to) {
				spent += x.units - x.over // under another kind of limit, the state begins with these units, too
				aside.until = max(aside.until, x.until)
			}
			kept := to.Migrate(m, s, now)
			what := fmt.Sprintf("seed %d, at %d from %+v to %+v: %+v", seed, now, m.algorithm, to.algorithm, kept)
			require.LessOrEqual(t, to.Regained(kept), now+to.refill(), what)
			counted, rest := to.spent(kept, now), kept.asideAt(now)
			require.LessOrEqual(t, counted, to.capacity(), what)
			again := s.formers() != nil && slices.ContainsFunc(s.formers().list, func(f former) bool { return f.m.alike(to) })
			switch total := spent + aside.units; {
			case again && !m.alike(to) && s.formers().hold > now: // more was spent than this test has recorded
			case again && !m.alike(to):
				require.LessOrEqual(t, counted+rest.units, total+1, "no more counts and is set aside than was spent, %s", what)
			case total > to.capacity():
				lowered++
				if rest.units > 0 {
					require.Equal(t, total, counted+rest.units, "what counts and what is set aside is what was spent, %s", what)
					if rest.log == nil {
						require.LessOrEqual(t, rest.until, max(m.Regained(s), aside.until), what)
					}
				} else {
					require.True(t, counted >= total || max(m.Regained(s), aside.until) <= now, what)
				}
			case m.log && to.log:
				require.LessOrEqual(t, counted+rest.units, total, "entries that have left the window here still count there, %s", what)
			default:
				require.Zero(t, rest.units, what)
			}
			require.LessOrEqual(t, to.Remaining(kept, now), to.capacity(), what)
			m, s = to, kept
		}
	}
	require.Greater(t, lowered, 10_000)
}

func TestALimitThatIsLoweredAndRaisedLeavesNoMoreThanBefore(t *testing.T) {
	for seed := range uint64(testsize.Of(20_000, 400_000)) {
		r := rand.New(rand.NewPCG(seed, 55))
		per := 1 + r.Int64N(40)
		m, s, now := smallMeter(r, per), State{}, int64(0)
		for range 4 {
			now += r.Int64N(10)
			m.Advance(&s, now)
			if n := m.Remaining(s, now); n > 0 {
				m.Allow(&s, now, 1+r.Int64N(n))
			}
		}
		before, from := m.Remaining(s, now), m
		for range 1 + r.IntN(3) { // down, sideways, down
			to := smallMeter(r, per)
			if to.capacity() > m.capacity() {
				continue
			}
			s, m = to.Migrate(m, s, now), to
			m.Advance(&s, now)
		}
		s = from.Migrate(m, s, now)
		require.LessOrEqual(t, from.Remaining(s, now), before, "seed %d", seed)
	}
}

// within returns the maximum number of spent units that a limit can regain in a span.
func within(l Limit, span int64) int64 {
	ended := (span + l.Per - 1) / l.Per // how many windows end
	switch l.Kind {
	case TokenBucket, LeakyBucket:
		return l.Units * span / l.Per
	case SlidingLog:
		return l.Units * (span / l.Per)
	case SlidingCounter: // each window's weight is rounded up, so one unit comes back late
		return min(l.Units*ended, l.Units*span/l.Per+2*ended)
	}
	return l.Units * ended
}

// A key's limit changes back and forth between two limits of any algorithms. Within any span the key
// spends at most the larger capacity, plus the units regained by both limits. There is one exception.
// If the window of a fixed window or a sliding counter becomes shorter, it ends once its new length
// has passed, even for units spent later in the longer window. Then both capacities together pass.
func TestFlippingTwoLimitsPassesTheLargerCapacityAndTheRegainOfBoth(t *testing.T) {
	type passed struct{ at, n int64 }
	flips, reached := 0, make(map[[2]Kind]bool)
	for a := TokenBucket; a <= Calendar; a++ {
		for b := TokenBucket; b <= Calendar; b++ {
			for seed := range uint64(testsize.Of(1_000, 20_000)) {
				r := rand.New(rand.NewPCG(seed, uint64(a*Calendar+b)))
				var limits [2]Limit
				var two [2]Meter
				for i, kind := range []Kind{a, b} {
					l := Limit{Kind: kind, Units: 1 + r.Int64N(12), Per: 1 + r.Int64N(30), Burst: 1 + r.Int64N(12), Horizon: 1 << 40, Most: 1 << 50}
					if i == 1 && r.IntN(2) == 0 {
						l.Per = limits[0].Per
					}
					if kind == Calendar {
						l.Windows = even(l.Per)
					}
					limits[i], two[i] = l, New(l)
				}
				windows := func(k Kind) bool { return k == FixedWindow || k == SlidingCounter }
				most := max(two[0].capacity(), two[1].capacity())
				if windows(a) && windows(b) && (a == FixedWindow || b == FixedWindow) && limits[0].Per != limits[1].Per {
					most = two[0].capacity() + two[1].capacity()
				}
				now, i := r.Int64N(100), r.IntN(2)
				s := State{At: now}
				seldom, step, greedy := 1+r.IntN(4), 1+r.Int64N(8), r.IntN(3)
				var all []passed
				for range 40 {
					if now += r.Int64N(step); r.IntN(12) == 0 {
						now += r.Int64N(30)
					}
					two[i].Advance(&s, now)
					if r.IntN(seldom) == 0 {
						s, i = two[1-i].Migrate(&two[i], s, now), 1-i
						two[i].Advance(&s, now)
						flips++
					}
					if n := two[i].Remaining(s, now); n > 0 {
						if r.IntN(3) > greedy {
							n = 1 + r.Int64N(n)
						}
						require.True(t, two[i].Allow(&s, now, n))
						all = append(all, passed{now, n})
					}
				}
				for k, first := range all {
					sum := int64(0)
					for _, p := range all[k:] {
						sum += p.n
						bound := most + within(limits[0], p.at-first.at) + within(limits[1], p.at-first.at)
						if sum > bound {
							t.Fatalf("seed %d: %d from %d to %d, want at most %d, of %+v and %+v: %v", seed, sum, first.at, p.at, bound, limits[0], limits[1], all)
						}
						reached[[2]Kind{a, b}] = reached[[2]Kind{a, b}] || sum == bound
					}
				}
			}
		}
	}
	require.Greater(t, flips, 100_000)
	require.Len(t, reached, int(Calendar*Calendar))
	for pair, ok := range reached {
		assert.True(t, ok, "no history of %v reaches the bound: it could be lower", pair)
	}
}

// The bound also holds for real costs. Reservations are settled for less before and after changes of the limit,
// and only real costs count. Until its settlement a reservation is charged with its estimate, so less passes.
func TestSettlementsAmongFlipsPassNoMoreThanTheBoundOfFlips(t *testing.T) {
	testsize.Arithmetic(t)
	type charge struct {
		at, cost, real int64
		sp             Spending
		changes        int
		kind           Kind
		until          int64 // when its limit has regained it
	}
	given := make(map[[2]Kind]int) // counts the settlements that gave units back although the limit had changed
	for a := TokenBucket; a <= Calendar; a++ {
		for b := TokenBucket; b <= Calendar; b++ {
			for seed := range uint64(testsize.Of(2_000, 40_000)) {
				r := rand.New(rand.NewPCG(seed, uint64(100+a*Calendar+b)))
				var limits [2]Limit
				var two [2]Meter
				for i, kind := range []Kind{a, b} {
					limits[i] = Limit{Kind: kind, Units: 1 + r.Int64N(8), Per: 1 + r.Int64N(40), Burst: 1 + r.Int64N(12), Horizon: 1 << 40, Most: 1 << 50}
					if i == 1 && r.IntN(3) == 0 {
						limits[i].Per = limits[0].Per
					}
					if kind == Calendar {
						limits[i].Windows = even(limits[i].Per)
					}
					two[i] = New(limits[i])
				}
				most := max(two[0].capacity(), two[1].capacity())
				windows := func(k Kind) bool { return k == FixedWindow || k == SlidingCounter }
				if windows(a) && windows(b) && (a == FixedWindow || b == FixedWindow) && limits[0].Per != limits[1].Per {
					most = two[0].capacity() + two[1].capacity()
				}
				now, i, changes := r.Int64N(100), r.IntN(2), 0
				s := State{At: now}
				seldom, step, share := 1+r.IntN(6), 1+r.Int64N(10), r.IntN(4)
				var all, open []*charge
				for range 40 {
					now += r.Int64N(step)
					two[i].Advance(&s, now)
					if r.IntN(seldom) == 0 {
						s, i = two[1-i].Migrate(&two[i], s, now), 1-i
						two[i].Advance(&s, now)
						changes++
					}
					for len(open) > 0 && r.IntN(3) == 0 {
						k := r.IntN(len(open))
						c := open[k]
						open = slices.Delete(open, k, k+1)
						c.real = r.Int64N(c.cost + 1)
						if c.kind == two[i].kind && c.changes != changes && c.until <= now {
							continue // the limit may already have regained some of the returned units
						}
						before, sp := two[i].spent(s, now)+s.asideAt(now).units, c.sp
						sp.Changed = c.changes != changes
						two[i].Settle(&s, now, sp, c.real)
						two[i].Refresh(&s)
						two[i].Advance(&s, now)
						if sp.Changed && two[i].spent(s, now)+s.asideAt(now).units < before {
							given[[2]Kind{a, b}]++
						}
					}
					n := two[i].Remaining(s, now)
					if n == 0 {
						continue
					}
					if r.IntN(2) == 0 {
						n = 1 + r.Int64N(n)
					}
					c := &charge{at: now, cost: n, real: n, changes: changes, kind: two[i].kind, until: now + limits[i].Per}
					if c.kind == Calendar {
						c.until = limits[i].Windows.At(now).To
					}
					if r.IntN(4) < share {
						require.True(t, two[i].Allow(&s, now, n))
					} else {
						ahead := int64(0)
						if two[i].kind == LeakyBucket {
							ahead = 1 << 40 // room for the delay in the queue
						}
						o := two[i].Take(&s, Moment{now, now}, n, ahead, Open)
						require.False(t, o.Denied(now))
						c.sp = o.Spending(n)
						c.sp.Open = true
						open = append(open, c)
					}
					all = append(all, c)
				}
				for k, first := range all {
					sum := int64(0)
					for _, c := range all[k:] {
						sum += c.real
						bound := most + within(limits[0], c.at-first.at) + within(limits[1], c.at-first.at)
						if sum > bound {
							t.Fatalf("seed %d: %d from %d to %d, want at most %d, of %+v and %+v", seed, sum, first.at, c.at, bound, limits[0], limits[1])
						}
					}
				}
			}
		}
	}
	for a := FixedWindow; a <= Calendar; a++ {
		require.Greater(t, given[[2]Kind{a, a}], 100, "%v", a)
	}
}

// A cost leaves a queue in the tick in which the limit changes to a window.
// The new window does not count it, so its settlement returns nothing.
func TestAPlaceThatLeavesInTheTickOfAChangeReturnsNothing(t *testing.T) {
	for kind := FixedWindow; kind <= SlidingCounter; kind++ {
		queue, window := meterOf(LeakyBucket, 7, 1, 5), meterOf(kind, 1, 29, 0)
		s := State{At: 28}
		queue.Take(&s, Moment{28, 28}, 3, 1<<40, Open)
		sp := queue.Take(&s, Moment{28, 28}, 2, 1<<40, Open).Spending(2)
		queue.Advance(&s, 29)
		s = window.Migrate(queue, s, 29)
		require.True(t, window.Allow(&s, 29, 1), "all 5 have left")
		sp.Changed = true
		window.Settle(&s, 29, sp, 0)
		window.Refresh(&s)
		assert.Zero(t, window.Remaining(s, 29), "%v", kind)
	}
}

// Under a lower limit, a log's newest entries count and the older
// ones are set aside. A settlement returns units of the older ones.
func TestAnOldSettlementUnderALoweredLogLetsNoMorePass(t *testing.T) {
	low, high := meterOf(SlidingLog, 2, 42, 0), meterOf(SlidingLog, 6, 27, 0)
	var s State
	sp := high.Take(&s, Moment{4, 4}, 2, 0, Open).Spending(2)
	require.True(t, high.Allow(&s, 9, 3))
	s = low.Migrate(high, s, 10)
	sp.Changed = true
	low.Settle(&s, 11, sp, 0)
	low.Advance(&s, 11)
	s = high.Migrate(low, s, 12)
	high.Advance(&s, 31)
	assert.LessOrEqual(t, high.Remaining(s, 31), int64(3), "the 3 of 9 count until 36")
	high.Advance(&s, 39)
	assert.EqualValues(t, 6, high.Remaining(s, 39), "the rest is charged again at 12")
}

// A sliding counter's previous window weighs less under a shorter window, and more
// again under a longer one. A change back and forth loses no spending that counts.
func TestACounterThatIsFlippedAtOneInstantPassesItsCapacityOnce(t *testing.T) {
	short, long := meterOf(SlidingCounter, 6, 5, 0), meterOf(SlidingCounter, 4, 25, 0)
	var s State
	require.True(t, short.Allow(&s, 34, 6))
	passed, m, other := int64(0), short, long
	for range 20 {
		m.Advance(&s, 43)
		if n := m.Remaining(s, 43); n > 0 {
			require.True(t, m.Allow(&s, 43, n))
			passed += n
		}
		s = other.Migrate(m, s, 43)
		m, other = other, m
	}
	assert.EqualValues(t, 4, passed, "2 of 6 still count")
}

func TestALogOfHoursAndOneOfMinutesPassNoMoreInTurn(t *testing.T) {
	hour := meterOf(SlidingLog, 1000, 3600, 0)
	minute := meterOf(SlidingLog, 10, 60, 0)
	var s State
	passed, m, other := int64(0), hour, minute
	for now := int64(0); now < 3600; now += 30 {
		m.Advance(&s, now)
		if n := m.Remaining(s, now); n > 0 {
			require.True(t, m.Allow(&s, now, n))
			passed += n
		}
		s = other.Migrate(m, s, now)
		m, other = other, m
	}
	assert.LessOrEqual(t, passed, int64(1000+10*60), "the hour's, and each minute's")
}

func TestAWindowRegainsByTheOldLimitUntilTheChange(t *testing.T) {
	for _, kind := range []Kind{FixedWindow, SlidingCounter} {
		for _, at := range []int64{0, 3540} {
			from, to := meterOf(kind, 1000, 3600, 0), meterOf(kind, 10, 1, 0)
			var s State
			from.Adjust(&s, 0, 21_000)
			from.Advance(&s, at)
			s = to.Migrate(from, s, at)
			to.Advance(&s, at)
			// The change leaves a debt of 20,000 units, and the new limit regains 10 a second.
			assert.InDelta(t, at+2000, to.Regained(s), 3, "%v at %d", kind, at)
		}
	}
}

func TestAReservationGivesBackOfTheRestFirst(t *testing.T) {
	for _, cost := range []int64{5, 60, 95, 1005, 1060, 1095} {
		kind := FixedWindow
		if cost > 1000 {
			kind, cost = SlidingLog, cost-1000
		}
		from, to := meterOf(kind, 100, 60, 0), meterOf(kind, 10, 60, 0)
		var s State
		o := from.Take(&s, Moment{}, cost, 0, Open)
		require.True(t, from.Allow(&s, 0, 100-cost))
		s = to.Migrate(from, s, 1)
		require.EqualValues(t, 90, s.asideAt(1).units)
		require.EqualValues(t, 60, s.asideAt(1).until)
		sp := o.Spending(cost)
		sp.Changed = true
		to.Settle(&s, 2, sp, 0)
		to.Refresh(&s)
		assert.Equal(t, max(0, 90-cost), s.asideAt(2).units)
		assert.Equal(t, min(10, 100-cost), to.spent(s, 2))
		s = from.Migrate(to, s, 3)
		assert.Equal(t, cost, from.Remaining(s, 3))
	}
}

func TestAGrantOfMoreThanCountsTakesFromTheRest(t *testing.T) {
	for kind := TokenBucket; kind < Calendar; kind++ {
		from, to := meterOf(kind, 100, 1000, 100), meterOf(kind, 10, 10, 10)
		var s State
		require.True(t, from.Allow(&s, 0, 100))
		s = to.Migrate(from, s, 0)
		to.Adjust(&s, 0, -40)
		to.Refresh(&s)
		assert.EqualValues(t, 60, s.asideAt(0).units, "%v", kind)
		s = from.Migrate(to, s, 0)
		assert.EqualValues(t, 40, from.Remaining(s, 0), "%v", kind)
	}
}

func TestNothingIsKnownOfAKeyWhoseRestIsOver(t *testing.T) {
	for kind := TokenBucket; kind < Calendar; kind++ {
		from, to := meterOf(kind, 100, 1000, 100), meterOf(kind, 10, 10, 10)
		var s State
		require.True(t, from.Allow(&s, 0, 100))
		s = to.Migrate(from, s, 0)
		fresh, until := to.Regained(s), to.Forgotten(s)
		assert.LessOrEqual(t, fresh, to.refill())
		assert.Equal(t, from.refill()-map[bool]int64{true: 1}[kind <= LeakyBucket], until, "%v", kind)
		if !from.alike(to) { // between limits that are alike, the window continues
			assert.Equal(t, until+from.refill(), to.Kept(s), "%v", kind)
			until = to.Kept(s)
		}
		to.Advance(&s, fresh)
		assert.Equal(t, int64(10), to.Remaining(s, fresh))
		require.True(t, to.Allow(&s, fresh, 1))
		to.Advance(&s, until)
		assert.Zero(t, s.asideAt(until))
		assert.Equal(t, to.Regained(s), to.Forgotten(s), "%v", kind)
	}
}

// Units set aside lapse at their time, even if the key was not used since.
func TestARestThatHasLapsedIsNeitherChargedNorGivenBack(t *testing.T) {
	for kind := TokenBucket; kind < Calendar; kind++ {
		from, to := meterOf(kind, 100, 60, 100), meterOf(kind, 10, 6000, 10)
		lowered := func() (State, Spending) {
			var s State
			sp := from.Take(&s, Moment{}, 50, 0, Booked).Spending(50)
			require.True(t, from.Allow(&s, 0, 50))
			s = to.Migrate(from, s, 0)
			require.Positive(t, s.asideAt(0).units)
			sp.Changed = true
			return s, sp
		}
		s, _ := lowered()
		until := to.Forgotten(s)
		require.Less(t, s.asideAt(0).until, until, "the longer window goes on")
		until = s.asideAt(0).until
		counted := to.spent(s, until)
		require.Positive(t, counted)
		s = from.Migrate(to, s, until)
		assert.LessOrEqual(t, from.spent(s, until), counted, "%v", kind)

		s, sp := lowered()
		to.Settle(&s, until, sp, 0)
		to.Refresh(&s)
		gave := counted - to.spent(s, until)
		if kind <= LeakyBucket { // a bucket gives back nothing after a change
			assert.Zero(t, gave, "%v", kind)
		} else {
			assert.Equal(t, counted, gave, "%v", kind)
		}
	}
}
