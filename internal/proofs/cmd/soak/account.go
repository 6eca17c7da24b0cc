package main

import (
	"fmt"
	"math/big"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// account has one watched key's allowed cost, now and at earlier checks.
type account struct {
	key   uint64
	spent atomic.Int64
	marks []mark
}

// mark has the spending at a check, and the clock's lowest reading since. If the clock
// was set back while a key was not used, the key may spend from this reading on.
type mark struct {
	low   time.Duration
	spent int64
}

// marksKept is how many earlier checks an interval may begin at, besides the first.
const marksKept = 50

// check compares the spending in each interval, from an earlier check until now, with the bound. low is the
// lowest reading since the last check, and high the highest of all. No other goroutine may spend meanwhile.
func (a *account) check(limit ratelimit.Limit, low, high time.Duration) error {
	spent := a.spent.Load()
	for i := range a.marks {
		m := &a.marks[i]
		m.low = min(m.low, low)
		most := bound(limit, high-m.low)
		if got := big.NewInt(spent - m.spent); got.Cmp(most) > 0 {
			return fmt.Errorf("key %d was allowed %v within %v; %v allows %v at most", a.key, got, high-m.low, limit, most)
		}
	}
	a.marks = append(a.marks, mark{high, spent})
	if len(a.marks) > marksKept {
		a.marks = append(a.marks[:1], a.marks[2:]...)
	}
	return nil
}

// bound returns the maximum spending in an interval of length t, including both ends.
func bound(l ratelimit.Limit, t time.Duration) *big.Int {
	units, per := big.NewInt(int64(l.Rate.Units)), big.NewInt(int64(l.Rate.Per))
	n := big.NewInt(int64(t))
	switch l.Algorithm {
	case ratelimit.AlgorithmSlidingLog:
		return n.Div(n, per).Add(n, big.NewInt(1)).Mul(n, units)
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmSlidingCounter:
		return n.Div(n, per).Add(n, big.NewInt(2)).Mul(n, units) // how many windows an interval touches
	default:
		n.Mul(n, units).Div(n, per)
		return n.Add(n, big.NewInt(int64(l.Burst)))
	}
}
