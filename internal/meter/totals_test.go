package meter

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// plain is a model of totals: a sorted slice.
type plain []entry

func (p plain) search(at int64) int {
	i, _ := slices.BinarySearchFunc(p, at, func(e entry, at int64) int {
		switch {
		case e.at < at:
			return -1
		case e.at > at:
			return 1
		}
		return 0
	})
	return i
}

func (p *plain) insert(at, cost int64) {
	i := p.search(at)
	if i < len(*p) && (*p)[i].at == at {
		(*p)[i].cost += cost
	} else {
		*p = slices.Insert(*p, i, entry{at, cost})
	}
}

func (p *plain) reduce(i int, n int64) int64 {
	n = min(n, (*p)[i].cost)
	if (*p)[i].cost -= n; (*p)[i].cost == 0 {
		*p = slices.Delete(*p, i, i+1)
	}
	return n
}

func (p plain) sum(k int) (n int64) {
	for _, e := range p[:k] {
		n += e.cost
	}
	return n
}

func (r *totals) list() (list plain) {
	for i := range r.len() {
		list = append(list, r.get(i))
	}
	return list
}

// Totals behave like a sorted slice, even when their counters wrap around.
func TestTotalsAreASortedSlice(t *testing.T) {
	for _, size := range []int{3, 50, 2000} {
		for _, origin := range []int64{0, math.MaxInt64 - 10, math.MinInt64} {
			rnd := rand.New(rand.NewPCG(uint64(size), uint64(origin)))
			r := totals{before: origin}
			var want plain
			for step := range 3_000 {
				now := int64(step)
				switch op := rnd.IntN(12); {
				case op < 6 && len(want) < size:
					at := max(now, r.newest())
					r.add(at, 1+now%7)
					want.insert(at, 1+now%7)
				case op < 7:
					at := now - rnd.Int64N(int64(size))
					r.insert(at, 2)
					want.insert(at, 2)
				case op < 9:
					at := now - rnd.Int64N(int64(size))
					i, took := want.search(at), int64(0)
					if i < len(want) && want[i].at == at {
						took = want.reduce(i, 3)
					}
					require.Equal(t, took, r.reduce(at, 3))
				case op < 10:
					n, took := rnd.Int64N(6), int64(0)
					if rnd.IntN(200) == 0 {
						n = math.MaxInt64
					}
					for len(want) > 0 && took < n {
						took += want.reduce(len(want)-1, n-took)
					}
					require.Equal(t, took, r.reduceNewest(n))
				default:
					k := rnd.IntN(min(3, len(want)) + 1)
					require.Equal(t, want.sum(k), r.popFront(k))
					want = want[k:]
				}
				require.Equal(t, len(want), r.len())
				if i := rnd.IntN(len(want) + 1); i > 0 {
					require.Equal(t, want.sum(i), r.sum(i))
					require.Equal(t, want[i-1], r.get(i-1))
					k := r.covering(want.sum(i))
					require.Equal(t, i, k)
					require.Equal(t, i, r.covering(want.sum(i-1)+1))
				}
				if step%50 == 0 || size < 10 {
					require.True(t, slices.Equal(want, r.list()), "%v, want %v", r.list(), want)
					c := r.clone()
					c.popFront(c.len())
					require.Equal(t, len(want), r.len())
				}
			}
		}
	}
}

func TestTotalsGiveMemoryBack(t *testing.T) {
	var r totals
	for i := range int64(1000) {
		r.add(i, 1)
	}
	require.Len(t, r.buf, 1024)
	r.popFront(500)
	r.reduceNewest(490)
	require.Len(t, r.buf, 32)
	require.Equal(t, entry{500, 1}, r.get(0))
	r.popFront(10)
	require.Len(t, r.buf, minTotals)
}
