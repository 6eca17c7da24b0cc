package meter

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// oneByOne is fold by its definition.
func oneByOne(p *Meter, l *ledger) State {
	s := l.base
	for i := range l.entries.len() {
		s = p.replay(s, l.get(i))
	}
	return s
}

// booked returns a ledger of n bookings at random instants, at which they would not all be
// booked: a limit may have changed since.
func booked(rnd *rand.Rand, per, most int64, n int) *ledger {
	l := &ledger{base: State{At: rnd.Int64N(per)}}
	at := l.base.At
	for range n {
		at += rnd.Int64N(per)*int64(rnd.IntN(3)) + 1
		sp := Spending{At: at, Cost: 1 + rnd.Int64N(most)}
		l.add(sp)
	}
	return l
}

// What runs of bookings come to is remembered. It must be what the bookings come to.
func TestFoldIsTheBookingsOneByOne(t *testing.T) {
	const slow = 30 * 365 * 24 * hour
	for _, m := range []*Meter{
		meterOf(TokenBucket, 7, 11, 20), meterOf(TokenBucket, 7, 11, 2000), meterOf(TokenBucket, 1, slow, 3), meterOf(TokenBucket, 3, 1, 5),
		meterOf(LeakyBucket, 7, 11, 20), meterOf(LeakyBucket, 7, 11, 2000), meterOf(LeakyBucket, 1, slow, 3),
		meterOf(FixedWindow, 7, 50, 0), meterOf(FixedWindow, 70, 50, 0), meterOf(FixedWindow, 1, slow, 0),
		meterOf(SlidingCounter, 7, 50, 0), meterOf(SlidingCounter, 70, 50, 0), meterOf(SlidingCounter, 1, slow, 0),
	} {
		for _, n := range []int{1, 63, 64, 65, 200, 5000, 10_000} {
			foldAndChange(t, m, n)
		}
	}
}

func foldAndChange(t *testing.T, p *Meter, n int) {
	rnd := rand.New(rand.NewPCG(uint64(n), 1))
	l := booked(rnd, 10, 20, n)
	for i := range 40 {
		l.entries.summed()
		require.Equal(t, oneByOne(p, l), withoutDetail(p.fold(l)), "%v, %d bookings, change %d", p.kind, n, i)
		if l.entries.len() == 0 {
			return
		}
		change(p, l, rnd)
	}
}

func withoutDetail(s State) State {
	s.detail = nil
	return s
}

// change does something to a ledger that happens to one.
func change(p *Meter, l *ledger, rnd *rand.Rand) {
	i := rnd.IntN(l.entries.len())
	switch rnd.IntN(6) {
	case 0: // time passes
		s := p.popDue(State{detail: &detail{ledger: l}}, l.get(min(i, 100)).At)
		if s.detail == nil {
			*l = ledger{base: s}
		}
	case 1:
		l.reduceNewest(1 + rnd.Int64N(50))
	case 2:
		l.add(Spending{At: l.entries.newest() + rnd.Int64N(100), Cost: 1 + rnd.Int64N(20)})
	default:
		sp := l.get(i)
		l.reduce(sp.At, max(1, sp.Cost-rnd.Int64N(2)))
	}
}

// A long ring keeps entries of cost 0, and sums of runs. Nobody must notice.
func TestALongLogIsASortedSlice(t *testing.T) {
	for _, size := range []int{100, 1000, 9000} {
		rnd := rand.New(rand.NewPCG(uint64(size), 2))
		var r ring[int64]
		costs := map[int64]int64{} // by instant
		for i := range int64(size) {
			r.add(entry{i * 2, 1 + i%7})
			costs[i*2] = 1 + i%7
		}
		for i := range 3000 {
			oldest, newest := r.get(0).at, r.newest()
			at := oldest + rnd.Int64N(newest-oldest+1)
			switch rnd.IntN(8) {
			case 0:
				at = oldest + rnd.Int64N(newest-oldest+1)
				r.insert(entry{at, 3})
				costs[at] += 3
			case 1:
				r.add(entry{newest + rnd.Int64N(3), 2})
				costs[r.newest()] += 2
			case 2:
				k := rnd.IntN(3)
				for j := range k {
					delete(costs, r.get(j).at)
				}
				r.popFront(k)
			default:
				took := r.reduce(at, 5)
				require.Equal(t, min(5, costs[at]), took)
				costs[at] -= took
			}
			if r.len() == 0 {
				break
			}
			checkSums(t, &r, rnd, i%100 == 0)
		}
		for at, n := range entriesOf(&r) {
			require.Equal(t, n, costs[at])
		}
	}
}

func entriesOf(r *ring[int64]) map[int64]int64 {
	all := map[int64]int64{}
	for i := range r.len() {
		all[r.get(i).at] += r.get(i).cost
	}
	return all
}

// checkSums compares what is remembered of runs with the entries.
func checkSums(t *testing.T, r *ring[int64], rnd *rand.Rand, all bool) {
	k := 1 + rnd.IntN(r.len())
	if !all {
		k = min(k, 300)
	}
	var want int64
	for i := range k {
		want += r.get(i).cost
	}
	require.Equal(t, want, total(r, k))
	if want == 0 {
		return
	}
	need := 1 + rnd.Int64N(want)
	got := covering(r, need)
	require.LessOrEqual(t, need, total(r, got))
	require.Greater(t, need, total(r, got-1))
	require.Positive(t, r.get(r.len()-1).cost, "the newest is not one that was given back")
}

// Entries of cost 0 do not pile up.
func TestCancelledBookingsGiveTheirMemoryBack(t *testing.T) {
	var r ring[int64]
	for i := range int64(10_000) {
		r.add(entry{i, 1})
	}
	for i := int64(1); i < 9_999; i++ {
		r.reduce(i, 1)
	}
	require.Less(t, len(r.buf), 512)
	require.Equal(t, []entry{{0, 1}, {9999, 1}}, r.list())
	require.EqualValues(t, 2, total(&r, r.len()))
	require.Equal(t, 2, len(r.list()))
	r.reduce(9999, math.MaxInt64)
	require.EqualValues(t, 0, r.newest())
}

// What is owed after two runs is what is owed after the one and then the other, however far
// apart they are.
func TestTwoFlowsAreOne(t *testing.T) {
	bucket := bucketOf(7, 11, 20)
	rnd := rand.New(rand.NewPCG(1, 5))
	any := func() flow {
		least := rnd.Int64N(100)
		return flow{span{ticks: least}, span{rnd.Int64N(50), 1 + rnd.Int64N(6)}, span{ticks: least + rnd.Int64N(60)}}
	}
	for range 20_000 {
		f, g, s := any(), any(), State{At: rnd.Int64N(150)}
		require.Equal(t, bucket.pour(bucket.pour(s, f), g), bucket.pour(s, bucket.then(f, g)), "%+v, %+v then %+v", s, f, g)
	}
}
