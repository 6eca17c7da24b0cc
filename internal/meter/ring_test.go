package meter

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (r *ring[S]) list() (list []entry) {
	for i := range r.len() {
		if e := r.get(i); e.cost > 0 {
			list = append(list, e)
		}
	}
	return list
}

// A ring does what a sorted slice does.
func TestRingIsASortedSlice(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var r ring[int64]
	var want []entry
	find := func(at int64) (int, bool) {
		return slices.BinarySearchFunc(want, at, func(e entry, at int64) int { return int(e.at - at) })
	}
	for i := range 50_000 {
		now := int64(i / 100)
		switch op := rnd.IntN(10); {
		case op < 5: // add at the end
			at := max(now, r.newest())
			r.add(entry{at, 1})
			if j, ok := find(at); ok {
				want[j].cost++
			} else {
				want = append(want, entry{at, 1})
			}
		case op < 6:
			at := now - rnd.Int64N(20)
			r.insert(entry{at, 2})
			if j, ok := find(at); ok {
				want[j].cost += 2
			} else {
				want = slices.Insert(want, j, entry{at, 2})
			}
		case op < 7:
			at := now - rnd.Int64N(20)
			took := r.reduce(at, 3)
			j, ok := find(at)
			if !ok {
				require.Zero(t, took)
				break
			}
			require.Equal(t, min(3, want[j].cost), took)
			if want[j].cost -= took; want[j].cost == 0 {
				want = slices.Delete(want, j, j+1)
			}
		case op < 8:
			n := rnd.Int64N(4)
			require.LessOrEqual(t, r.reduceNewest(n), n)
			for ; n > 0 && len(want) > 0; n-- {
				last := len(want) - 1
				if want[last].cost--; want[last].cost == 0 {
					want = want[:last]
				}
			}
		default:
			k := rnd.IntN(min(3, len(want)) + 1)
			r.popFront(k)
			want = want[k:]
		}
		if !slices.Equal(want, r.list()) {
			require.Equal(t, want, r.list(), "after %d", i)
		}
	}
}

func TestRingGivesMemoryBack(t *testing.T) {
	var r ring[int64]
	for i := range int64(1000) {
		r.add(entry{i, 1})
	}
	assert.Len(t, r.buf, 1024)
	r.popFront(990)
	assert.Len(t, r.buf, 32)
	assert.Equal(t, entry{990, 1}, r.get(0))
	r.popFront(10)
	assert.Len(t, r.buf, minRing)
}
