package meter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// rememberLimits returns limits of each kind, in ticks.
func rememberLimits() []Limit {
	var all []Limit
	for _, kind := range []Kind{TokenBucket, LeakyBucket, FixedWindow, SlidingLog, SlidingCounter, Calendar} {
		for _, units := range []int64{1, 7, 255, 10_000} {
			all = append(all, Limit{Kind: kind, Units: units, Per: 1000, Burst: units, Windows: even(1000), Horizon: 1 << 50, Most: 1 << 60})
		}
	}
	return all
}

// admits returns the largest cost allowed now. Tests compare two states'
// spending by it: the state that never admits more has spent at least as much.
func admits(m *Meter, s State, now int64) int64 {
	m.Refresh(&s)
	return m.Remaining(s, now)
}

// A recalled state never admits more than the forgotten one. It is regained no later than the forgotten one would be.
func TestRecalledSpendingAdmitsNoMore(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, l := range rememberLimits() {
		m := New(l)
		for range 100 {
			s, now := State{At: -5000}, int64(-5000)
			for range r.IntN(8) {
				m.Take(&s, Moment{now, now}, 1+r.Int64N(m.capacity()), 0, Final)
				now += r.Int64N(700)
			}
			past := m.Remember(s, now)
			recalled := m.Recall(past, now)
			if past.Share == 0 {
				require.Equal(t, m.capacity(), admits(&m, s, now))
				require.Equal(t, State{At: now}, recalled)
				continue
			}
			require.LessOrEqual(t, m.Regained(recalled), max(now, m.Regained(s)), "%+v", l)
			for at := now; at < now+2500; at += 1 + r.Int64N(300) {
				require.LessOrEqual(t, admits(&m, recalled, at), admits(&m, s, at), "%+v at %d: %+v of %+v", l, at, past, s)
			}
			again := m.Remember(recalled, now)
			require.True(t, again.Share == 0 || m.Covers(past, again), "%+v: %+v is %+v when it is forgotten again", l, past, again)
		}
	}
}

// A merged record admits no more than either of its parts.
func TestMergedSpendingAdmitsNoMoreThanEither(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for _, l := range rememberLimits() {
		m := New(l)
		for range 400 {
			some := func() Remembered { return Remembered{r.Int64N(2200) - 100, uint8(1 + r.IntN(255)), l.Kind == Calendar} }
			a, b, now := some(), some(), int64(0)
			if r.IntN(3) == 0 {
				b.Until = a.Until - l.Per // successive windows
			}
			both := m.Merge(a, b, now, 0)
			require.Equal(t, both, m.Merge(b, a, now, 0))
			for at := now; at < now+2500; at += 1 + r.Int64N(100) {
				of := func(x Remembered) int64 { return admits(&m, m.Recall(x, now), at) }
				require.LessOrEqual(t, of(both), min(of(a), of(b)), "%+v at %d: %+v and %+v are %+v", l, at, a, b, both)
			}
		}
	}
}

// A record may have been written under another limit or for another key, so its figures can have any value.
func TestRecalledSpendingIsCapped(t *testing.T) {
	for _, l := range rememberLimits() {
		m := New(l)
		for _, now := range []int64{math.MinInt64 / 2, -1, 0, 1 << 60} {
			for _, until := range []int64{math.MinInt64, math.MinInt64 / 2, -1, 0, now - 1, now, now + 1, now + 999, now + 1e6, math.MaxInt64 / 2} {
				for _, share := range []uint8{1, 128, 255} {
					t.Run(fmt.Sprint(l, now, until, share), func(t *testing.T) {
						s := m.Recall(Remembered{until, share, false}, now)
						refill := int64(1000)
						if l.Kind == SlidingCounter {
							refill = 2000
						}
						most := min(until, now+refill)
						if l.Kind == Calendar {
							most = now + refill // the present window's end
						}
						require.LessOrEqual(t, m.Regained(s), max(now, most))
						if until > now && l.Kind != Calendar {
							require.Greater(t, m.Regained(s), now)
						}
						o := m.Take(&s, Moment{now, now}, 1, 0, Final)
						require.LessOrEqual(t, o.Retry, now+refill)
					})
				}
			}
		}
	}
}

// The capacity takes 714 2/7 ticks to regain. A bucket that is full
// again after 714 ticks would be early by a fraction of a tick.
func TestABucketIsRecalledToTheTick(t *testing.T) {
	m := New(Limit{Kind: TokenBucket, Units: 7, Per: 1000, Burst: 5, Horizon: 1 << 50, Most: 1 << 60})
	require.Equal(t, State{At: 714}, m.Recall(Remembered{714, 1, false}, 0))
	require.Equal(t, State{At: 714, N: 2}, m.Recall(Remembered{715, 1, false}, 0))
}
