package redislimit

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/tentative"
)

// queueOfTenSeconds lets a unit out in ten seconds.
var queueOfTenSeconds = ratelimit.LeakyBucket(unitInTenSeconds, 20)

// stands takes a tentative place in the queue, like a Wait. in is the
// time until the place's instant, and moved is how far it has moved up.
func (l *Limiter) stands(t *testing.T, cost int) (p *place, in time.Duration, moved *time.Duration) {
	t.Helper()
	plan, err := l.planFor("k")
	require.NoError(t, err)
	b, err := l.store.tentative.Begin(t.Context(), time.Minute)
	require.NoError(t, err)
	t.Cleanup(b.Drop)
	r := &request{tentative: b.Number}
	d, err := l.decideUnder(t.Context(), r, plan, "k", cost, math.MaxInt64, opKeep)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.NotEmpty(t, r.record)
	moved = new(time.Duration)
	p = &place{store: l.store, key: r.keys[0], plan: plan, number: b.Number, record: r.record, moved: func(by time.Duration) { *moved += by }}
	return p, d.Delay, moved
}

// next returns the delay of a unit entering the queue now.
func (l *Limiter) next(t *testing.T) time.Duration {
	t.Helper()
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	return d.Delay
}

func TestThePlaceOfADeadProcessIsGivenBackAndThoseBehindMoveUp(t *testing.T) {
	const ten = 10 * time.Second
	f := newFixture(t)
	dead, first, second := f.limiter(queueOfTenSeconds, "x"), f.limiter(queueOfTenSeconds, "x"), f.limiter(queueOfTenSeconds, "x")
	require.True(t, dead.Allow("k", 1))
	gone, in, _ := dead.stands(t, 3)
	require.Equal(t, ten, in)
	a, in, movedA := first.stands(t, 1)
	require.Equal(t, 4*ten, in)
	b, in, movedB := second.stands(t, 2)
	require.Equal(t, 5*ten, in)
	require.Equal(t, 7*ten, first.next(t))

	a.follow([]string{dead.store.tentative.ID})
	require.Equal(t, 4*ten, first.next(t))
	require.Equal(t, 3*ten, *movedA)
	b.follow(nil) // it has moved already
	require.Equal(t, 3*ten, *movedB)
	lasts, err := gone.confirm()
	require.NoError(t, err)
	require.False(t, lasts)
	for _, p := range []*place{a, b} {
		lasts, err = p.confirm()
		require.NoError(t, err)
		require.True(t, lasts)
	}
	require.NoError(t, a.settle(0)) // another place is behind this one
	require.Equal(t, 4*ten, first.next(t))
	require.NoError(t, b.settle(1))
	require.Equal(t, 3*ten, first.next(t))
}

// A full queue denies a process. If the process has waiting callers, it then gives back a dead process's places.
func TestAFullQueueGivesBackThePlacesOfADeadProcess(t *testing.T) {
	f := newFixture(t)
	dead, other := f.limiter(queueOfTenSeconds, "x"), f.limiter(queueOfTenSeconds, "x")
	require.True(t, dead.Allow("k", 1))
	require.True(t, dead.Allow("k", 1))
	d, _ := dead.diesWaiting(t, 18)
	require.Equal(t, 20*time.Second, d.Delay)
	require.False(t, other.Allow("k", 5))
	f.clock.Advance(tentative.Holds)
	require.False(t, other.Allow("k", 5), "it has never waited")
	b, err := other.store.tentative.Begin(t.Context(), time.Second)
	require.NoError(t, err)
	b.Drop()
	d, err = other.Take(t.Context(), "k", 5)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	assert.Equal(t, 20*time.Second-tentative.Holds, d.Delay)
}

// A place without a record stays where it is, so dead processes' places before it stay taken.
func TestNoPlaceMovesBeforeOneThatStays(t *testing.T) {
	const ten = 10 * time.Second
	f := newFixture(t)
	dead, live := f.limiter(queueOfTenSeconds, "x"), f.limiter(queueOfTenSeconds, "x")
	silent := []string{dead.store.tentative.ID}
	require.True(t, dead.Allow("k", 1))
	dead.stands(t, 1)
	d, err := live.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 2*ten, d.Delay)
	dead.stands(t, 2)
	a, in, moved := live.stands(t, 1)
	require.Equal(t, 5*ten, in)
	a.follow(silent)
	require.Equal(t, 2*ten, *moved)
	require.Equal(t, 4*ten, live.next(t))
	a.follow(silent)
	require.Equal(t, 2*ten, *moved)
	require.Equal(t, 4*ten, live.next(t))
}

// A place does not move to an instant if its process might learn of it too late. Nobody claims a place after its instant.
func TestAPlaceIsClaimedBeforeItsInstant(t *testing.T) {
	f := newFixture(t)
	dead, live := f.limiter(queueOfTenSeconds, "x"), f.limiter(queueOfTenSeconds, "x")
	require.True(t, dead.Allow("k", 1))
	dead.stands(t, 1)
	a, in, moved := live.stands(t, 1)
	require.Equal(t, 20*time.Second, in)
	f.clock.Advance(13 * time.Second) // the dead process's place has served no call
	a.follow([]string{dead.store.tentative.ID})
	require.Equal(t, 6500*time.Millisecond, *moved)
	require.Equal(t, 10500*time.Millisecond, live.next(t))
	f.clock.Advance(501 * time.Millisecond)
	lasts, err := a.confirm()
	require.NoError(t, err)
	require.False(t, lasts)
}

// Whatever is in the queue, no two places are closer together than the rate allows. Places are given back where possible.
func TestAQueueKeepsItsRateThoughProcessesDie(t *testing.T) {
	f := newFixture(t)
	closed := 0
	for seed := range testsize.Of[uint64](60, 1000) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testsize.Seed(seed), 680))
			rate := []ratelimit.Rate{unitInTenSeconds, {Units: 3, Per: 10 * time.Second}, {Units: 7, Per: time.Second}, {Units: 999_983, Per: 24 * time.Hour}}[rng.IntN(4)]
			limit, name := ratelimit.LeakyBucket(rate, 1000), fmt.Sprint("queue", seed)
			var fleet []*Limiter
			for range 4 {
				fleet = append(fleet, f.limiter(limit, name))
			}
			type standing struct {
				at    time.Duration
				cost  int
				of    int // -1 if it stays
				place *place
				moved *time.Duration
			}
			var all []standing
			require.True(t, fleet[0].Allow("k", 1+rng.IntN(30)))
			mixed := rng.IntN(2) == 0
			for range 1 + rng.IntN(8) {
				s := standing{cost: 1 + rng.IntN(50), of: rng.IntN(4)}
				if mixed && rng.IntN(4) == 0 || fleet[0].next(t) <= time.Second {
					d, err := fleet[0].Take(t.Context(), "k", s.cost)
					require.NoError(t, err)
					s.at, s.of = f.clock.Now()+d.Delay, -1
				} else {
					p, in, moved := fleet[s.of].stands(t, s.cost)
					s.at, s.place, s.moved = f.clock.Now()+in, p, moved
				}
				if all = append(all, s); mixed {
					f.clock.Advance(time.Duration(rng.IntN(300)) * time.Millisecond)
				}
			}
			end := f.clock.Now() + fleet[0].next(t)
			isDead, silent := func(i int) bool { return i == 2 || i == 3 }, []string{fleet[2].store.tentative.ID, fleet[3].store.tentative.ID}
			records, err := fleet[0].store.records(t.Context(), recordsKey(fleet[0].space.key("k")), time.Time{})
			require.NoError(t, err)
			_, _, err = fleet[0].store.closeUp(t.Context(), fleet[0].space.key("k"), records, time.Time{}, silent)
			require.NoError(t, err)
			var stay []standing
			for _, s := range all {
				if s.of >= 0 && !isDead(s.of) {
					s.place.follow(nil)
					if *s.moved != 0 {
						require.Positive(t, *s.moved)
						s.at -= *s.moved
						require.GreaterOrEqual(t, s.at, f.clock.Now()+2*tentative.Every)
						closed++
					}
				}
				if !isDead(s.of) {
					stay = append(stay, s)
				}
			}
			after := f.clock.Now() + fleet[0].next(t)
			require.LessOrEqual(t, after, end)
			stay = append(stay, standing{at: after, of: -1})
			require.True(t, slices.IsSortedFunc(stay, func(a, b standing) int { return cmp.Compare(a.at, b.at) }), "%+v", stay)
			price := func(cost int) time.Duration {
				return time.Duration(float64(cost) * float64(rate.Per) / float64(rate.Units)).Truncate(time.Microsecond)
			}
			for i, s := range stay[1:] {
				gap, least := s.at-stay[i].at, price(stay[i].cost)
				require.GreaterOrEqual(t, gap, least, i)
				if !mixed && i > 0 && stay[0].at > f.clock.Now()+time.Second && stay[i].of >= 0 && s.of >= 0 {
					require.LessOrEqual(t, gap, least+2*time.Microsecond, i)
				}
			}
		})
	}
	require.Greater(t, closed, 20)
}

// If a process stands still, its place is given back or moves to a later instant, and
// the process enters the queue again. A process that is only slow keeps its place.
func TestAProcessThatStandsStillLosesItsPlaceInAQueue(t *testing.T) {
	s := startServer(t)
	for i, c := range []struct{ at, slow, other time.Duration }{
		{5 * time.Second, 20 * time.Second, 10 * time.Second},
		{9500 * time.Millisecond, 10 * time.Second, 20 * time.Second}, // it has claimed its place
	} {
		synctest.Test(t, func(t *testing.T) {
			key := fmt.Sprint("still", i)
			open, still := onBubble(t, s.addr, queueOfTenSeconds), standing{new(atomic.Pointer[time.Time])}
			slow, other := open(still), open(slowly(time.Millisecond))
			require.True(t, other.Allow(key, 1))
			begin := time.Now()
			wait := func(l *Limiter, served *time.Duration) {
				assert.NoError(t, l.Wait(t.Context(), key, 1))
				*served = time.Since(begin)
			}
			var all sync.WaitGroup
			var served [2]time.Duration
			all.Go(func() { wait(slow, &served[0]) })
			time.Sleep(time.Second)
			all.Go(func() { wait(other, &served[1]) }) // behind it
			time.Sleep(c.at - time.Second)
			until := begin.Add(c.at + 2*time.Second)
			still.until.Store(&until)
			all.Wait()
			assert.InDelta(t, c.slow, served[0], float64(100*time.Millisecond), i)
			assert.InDelta(t, c.other, served[1], float64(100*time.Millisecond), i)
			time.Sleep(2 * time.Second)
		})
	}
}
