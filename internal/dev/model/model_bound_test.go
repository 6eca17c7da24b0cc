package model

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// spent is one admitted cost, after its settlement.
type spent struct {
	op
	at   int64 // when it counts, or enters a leaky bucket
	left int64 // when it leaves a leaky bucket
	cost int64
}

// trace runs a script of charges, settlements and cancellations, and returns the spending
// left. It settles no reservation above its cost, because the bound does not cover debts.
func trace(t testing.TB, data []byte) (ratelimit.Limit, []*spent) {
	s := &script{data: data, onward: true, only: []opKind{opTake, opTake, opReserve, opReserve, opReserve, opReserve, opSettle, opCancel}}
	s.pickLimit()
	r := newRig(t, s.limit)
	var all []*spent
	byID := map[int]*spent{}
	for i := 0; len(s.data) > 0 && i < 100; i++ {
		o := s.next()
		if o.kind == opCancel {
			o.n = 0
		}
		if e := byID[o.id]; o.kind >= opSettle {
			if e != nil {
				o.n = max(0, min(o.n, e.n))
				e.settle(r, o)
			}
			continue
		}
		a := r.do(o)
		if s.last = a.d; a.d.Allowed && o.n > 0 {
			e := &spent{op: o, at: o.raw, left: o.raw + int64(a.d.Delay), cost: int64(o.n)}
			if s.limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
				e.at = e.left
			}
			if all = append(all, e); o.kind == opReserve {
				byID[o.id] = e
			}
		}
	}
	return s.limit, all
}

func (e *spent) settle(r *rig, o op) {
	if r.do(o); e.cost == int64(e.n) {
		e.cost = int64(o.n)
	}
}

func TestTheBoundHoldsWhateverIsSettledAndCancelled(t *testing.T) {
	for seed := range Rounds(2_000) {
		l, all := trace(t, seeded(2<<32|seed, 500))
		slices.SortStableFunc(all, func(a, b *spent) int { return cmp.Compare(a.at, b.at) })
		for i := range all {
			var sum int64
			for _, e := range all[i:] {
				sum += e.cost
				if d := e.at - all[i].at; !within(l, sum, d) {
					require.Fail(t, "too much", "seed %d, %v: %d in %d ns\n%v", seed, l, sum, d, dump(all))
				}
			}
		}
	}
}

// within reports whether a limit permits the sum in a closed interval of length d.
func within(l ratelimit.Limit, sum, d int64) bool {
	units, per := int64(l.Rate.Units), int64(l.Rate.Per)
	switch l.Algorithm {
	case ratelimit.AlgorithmSlidingLog:
		return d >= per || sum <= units
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmSlidingCounter:
		return d >= per || sum <= 2*units
	}
	// sum ≤ burst + d·units/per
	return mul(sum-int64(l.Burst), per).Cmp(mul(d, units)) <= 0
}

func TestLeakyBucketSpacesItsReleases(t *testing.T) {
	for seed := range Rounds(2_000) {
		data := seeded(3<<32|seed, 500)
		data[0] = byte(ratelimit.AlgorithmLeakyBucket - 1)
		l, all := trace(t, data)
		all = slices.DeleteFunc(all, func(e *spent) bool { return e.cost == 0 })
		for i := 1; i < len(all); i++ {
			// Both instants are rounded up, so their distance may be 1 ns less than cost·per/units.
			gap, want := all[i].left-all[i-1].left, new(big.Int).Div(mul(all[i-1].cost, int64(l.Rate.Per)), big.NewInt(int64(l.Rate.Units)))
			if gap < want.Int64() {
				require.Fail(t, "too close", "seed %d, %v: %d ns, want %v\n%v", seed, l, gap, want, dump(all[:i+1]))
			}
		}
	}
}

func TestNothingIsBookedBeyondMaxDelay(t *testing.T) {
	for seed := range Rounds(2_000) {
		s := &script{data: seeded(4<<32|seed, 300), onward: true}
		s.pickLimit()
		r := newRig(t, s.limit)
		for i := 0; len(s.data) > 0 && i < 60; i++ {
			o := s.next()
			if a := r.do(o); o.kind == opReserve {
				s.last = a.d
				require.LessOrEqual(t, a.d.Delay, max(0, o.ahead), "seed %d, %v: %v", seed, s.limit, o)
			}
		}
	}
}

func dump(all []*spent) (text string) {
	for _, e := range all {
		text += fmt.Sprintf("%v: at %d, passed on at %d, cost in the end %d\n", e.op, e.at, e.left, e.cost)
	}
	return text
}
