package meter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// charged is one event in a key's past, with its present cost.
type charged struct {
	at       int64
	cost     int64 // the admitted cost
	real     int64 // the real cost; negative for a grant
	admitted bool
	sp       Spending
}

// past is the key of a token bucket and all its events. Some of its reservations are settled.
type past struct {
	m      Meter
	s      State
	now    int64
	events []*charged // sorted by instant
	open   []*charged
	lost   []*charged // reservations that are never settled
	rnd    *rand.Rand
	grants bool
	beside bool // whether grants may take from bookings, too
	taken  int  // grants that took from bookings
	still  bool // whether much happens within one instant
	passes bool // whether some spendings are given back at once, for example because another limiter denies the call
	late   bool // whether some charges kept as Booked, not as Open, are settled later
	atOnce bool // whether nothing is booked
}

// replayed returns the spending of a key whose settled reservations were charged their real costs from the beginning.
func (p *past) replayed() span {
	s := State{}
	for _, e := range p.events {
		if e.at > p.now {
			break
		}
		switch {
		case e.real > 0:
			s = p.m.token.spend(s, e.at, e.real)
		case e.real < 0:
			s = p.m.token.forgive(s, e.at, -e.real)
		}
	}
	return s.owed(p.now)
}

func (p *past) add(e *charged) {
	i := len(p.events)
	for i > 0 && p.events[i-1].at > e.at {
		i--
	}
	p.events = slices.Insert(p.events, i, e)
}

// base returns the present spending without bookings.
func (p *past) base() span {
	p.m.Advance(&p.s, p.now)
	if l := p.m.bookings(p.s); l != nil {
		return l.base.owed(p.now)
	}
	return p.s.owed(p.now)
}

func (p *past) do() {
	move := p.rnd.IntN(4)
	if p.still && p.rnd.IntN(8) > 0 {
		move = 3
	}
	switch move {
	case 0:
		p.now += p.rnd.Int64N(5)
	case 1:
		p.now += p.rnd.Int64N(2*p.m.token.one.ticks + 2)
	case 2:
		if p.rnd.IntN(8) == 0 {
			p.now += p.rnd.Int64N(p.m.token.full.ticks + 2)
		}
	}
	if p.passes && p.rnd.IntN(3) == 0 {
		n := 1 + p.rnd.Int64N(p.m.token.capacity)
		if o := p.m.Take(&p.s, Moment{p.now, p.now}, n, 0, Booked); !o.Denied(p.now) {
			p.m.Settle(&p.s, p.now, o.Spending(n), 0)
		}
	}
	switch op := p.rnd.IntN(20); {
	case op < 3 && p.late:
		n := 1 + p.rnd.Int64N(p.m.token.capacity)
		if o := p.m.Take(&p.s, Moment{p.now, p.now}, n, 0, Booked); !o.Denied(p.now) {
			e := &charged{at: o.At, cost: n, real: n, admitted: true, sp: o.Spending(n)}
			p.add(e)
			p.open = append(p.open, e)
		}
	case op < 5:
		if n := 1 + p.rnd.Int64N(p.m.token.capacity); p.m.Allow(&p.s, p.now, n) {
			p.add(&charged{at: p.now, cost: n, real: n, admitted: true})
		}
	case op < 11:
		n, ahead := 1+p.rnd.Int64N(p.m.token.capacity), int64(0)
		if p.rnd.IntN(3) == 0 && !p.atOnce {
			ahead = p.rnd.Int64N(3*p.m.token.full.ticks + 1)
		}
		o := p.m.Take(&p.s, Moment{p.now, p.now}, n, ahead, Open)
		if o.Denied(p.now) {
			return
		}
		e := &charged{at: o.At, cost: n, real: n, admitted: true, sp: o.Spending(n)}
		e.sp.Open = true
		p.add(e)
		p.open = append(p.open, e)
	case op < 17 && len(p.open) > 0:
		i := p.rnd.IntN(len(p.open))
		e := p.open[i]
		p.open = slices.Delete(p.open, i, i+1)
		switch p.rnd.IntN(12) {
		case 0:
			p.lost = append(p.lost, e)
			return
		case 1: // the excess is charged now, or behind all bookings
			p.m.Advance(&p.s, p.now)
			over := 1 + p.rnd.Int64N(p.m.token.capacity)
			p.add(&charged{at: max(p.now, p.s.behind(p.now)), real: over})
			p.m.Settle(&p.s, p.now, e.sp, e.cost+over)
			return
		case 2:
			p.m.Settle(&p.s, p.now, e.sp, e.cost)
			return
		}
		e.real = p.rnd.Int64N(e.cost + 1)
		p.m.Settle(&p.s, p.now, e.sp, e.real)
	case op == 18 && p.grants, op == 17 && p.grants && p.still:
		if p.m.Advance(&p.s, p.now); p.m.bookings(p.s) != nil {
			if !p.beside {
				return // the grant could take from bookings, too
			}
			p.taken++
		}
		n := 1 + p.rnd.Int64N(p.m.token.capacity)
		p.m.Adjust(&p.s, p.now, -n)
		p.add(&charged{at: p.now, real: -n})
	case op == 19:
		n := 1 + p.rnd.Int64N(p.m.token.capacity)
		p.m.Advance(&p.s, p.now)
		p.add(&charged{at: max(p.now, p.s.behind(p.now)), real: n})
		p.m.Adjust(&p.s, p.now, n)
	}
}

func newPast(rnd *rand.Rand, grants bool) *past {
	units, per := 1+rnd.Int64N(7), 1+rnd.Int64N(20)
	m := New(Limit{Kind: TokenBucket, Units: units, Per: per, Burst: 1 + rnd.Int64N(12), Horizon: 1 << 40, Most: 1 << 50})
	return &past{m: m, rnd: rnd, grants: grants, still: rnd.IntN(3) == 0}
}

func (p *past) String() (text string) {
	for _, e := range p.events {
		text += fmt.Sprintf("at %d: %d, in truth %d\n", e.at, e.cost, e.real)
	}
	return fmt.Sprintf("%d/%d, burst %d, now %d\n%s%+v", p.m.token.units, p.m.token.per, p.m.token.capacity, p.now, text, p.s)
}

// bound checks every interval: the key spends at most what the limit and the grants up to the interval's end allow.
func (p *past) bound(t *testing.T) {
	var before int64
	for i, first := range p.events {
		sum := before
		for _, e := range p.events[i:] {
			if !e.admitted {
				sum += min(0, e.real)
				continue
			}
			sum += e.real
			// sum ≤ burst + d·units/per
			require.LessOrEqual(t, (sum-p.m.token.capacity)*p.m.token.per, (e.at-first.at)*p.m.token.units, "%v", p)
		}
		before += min(0, first.real)
	}
}

// A grant takes from the present spending first, and then from bookings. Later their reservations may be
// settled, and other calls may use their instants. Even then the grant allows its own units and no more.
func TestAGrantBesideBookingsAllowsItsUnitsAndNoMore(t *testing.T) {
	testsize.Arithmetic(t)
	taken := 0
	for seed := range uint64(testsize.Of(10_000, 200_000)) {
		p := newPast(rand.New(rand.NewPCG(seed, 55)), true)
		p.beside = true
		for range 40 {
			p.do()
		}
		taken += p.taken
		p.bound(t)
	}
	require.Greater(t, taken, 1000)
}

func TestASettledStateIsTheOneOfTheRealCosts(t *testing.T) {
	for seed := range uint64(testsize.Of(20_000, 400_000)) {
		p := newPast(rand.New(rand.NewPCG(seed, 5)), seed%2 == 1)
		p.passes = seed%4 > 1
		for range 60 {
			p.do()
			require.Equal(t, p.replayed(), p.base(), "seed %d: %v", seed, p)
		}
		if !p.grants {
			p.bound(t)
		}
		for _, e := range p.open { // in any order
			p.m.Settle(&p.s, p.now, e.sp, 0)
			e.real = 0
		}
		require.Equal(t, p.replayed(), p.base(), "seed %d: %v", seed, p)
	}
}

// A charge kept as Booked, not as Open, is given back late. Then only a part of it comes back.
func TestASpendingThatIsGivenBackLateAllowsNoMoreThanItsUnits(t *testing.T) {
	testsize.Arithmetic(t)
	for seed := range uint64(testsize.Of(20_000, 400_000)) {
		p := newPast(rand.New(rand.NewPCG(seed, 9)), false)
		p.late, p.passes = true, seed%2 == 1
		for range 60 {
			p.do()
			require.False(t, p.base().less(p.replayed()), "seed %d: %v", seed, p)
		}
		p.bound(t)
	}
}

// stored writes the state and reads it again, as a store does between two calls.
func (p *past) stored(t *testing.T) {
	p.m.Refresh(&p.s)
	passed := p.rnd.Int64N(3)
	data := p.m.AppendOpen(nil, p.s, p.now)
	s, left, err := p.m.ReadState(data, p.now+passed, passed)
	require.NoError(t, err)
	require.Empty(t, left)
	p.s, p.now = s, p.now+passed
}

func TestAStoredStateIsTheOneOfTheRealCosts(t *testing.T) {
	for seed := range uint64(testsize.Of(10_000, 200_000)) {
		p := newPast(rand.New(rand.NewPCG(seed, 8)), seed%2 == 1)
		exact := true
		for range 60 {
			p.do()
			exact = exact && (p.s.detail == nil || len(p.s.ledger.opens)+len(p.s.ledger.list) <= mostOpens)
			p.stored(t)
			if exact {
				require.Equal(t, p.replayed(), p.base(), "seed %d: %v", seed, p)
			} else {
				require.False(t, p.base().less(p.replayed()), "seed %d: %v", seed, p)
			}
		}
		if !p.grants {
			p.bound(t)
		}
	}
}

func TestARestIsStored(t *testing.T) {
	for kind := TokenBucket; kind < Calendar; kind++ {
		from, to := meterOf(kind, 100, 1000, 100), meterOf(kind, 10, 1000, 10)
		var s State
		require.True(t, from.Allow(&s, 0, 100))
		s = to.Migrate(from, s, 5)
		read, left, err := to.ReadState(to.AppendState(nil, s, 5), 7, 2)
		require.NoError(t, err)
		require.Empty(t, left)
		require.Equal(t, s.asideAt(7), read.asideAt(7), "%v", kind)
		require.EqualValues(t, 90, read.asideAt(7).units)
		read, _, err = to.ReadState(to.AppendState(nil, s, 5), 5000, 5000)
		require.NoError(t, err)
		require.Zero(t, read.asideAt(5000))
	}
}

func TestFewOpensGiveBackNoMoreThanMany(t *testing.T) {
	testsize.Extra(t)
	defer func(n int) { maxOpens = n }(maxOpens)
	for seed := range uint64(testsize.Of(20_000, 400_000)) {
		maxOpens = 2 + int(seed%3)
		p := newPast(rand.New(rand.NewPCG(seed, 6)), seed%2 == 1)
		for range 60 {
			p.do()
			require.False(t, p.base().less(p.replayed()), "seed %d: %v", seed, p)
			if l := p.s.detail; l != nil {
				require.LessOrEqual(t, len(l.ledger.opens), maxOpens)
			}
		}
		if !p.grants {
			p.bound(t)
		}
	}
}

// leasts counts the open reservations' different least debts above 0.
func (p *past) leasts() int {
	all := make(map[span]bool)
	for _, e := range slices.Concat(p.open, p.lost) {
		if e.at > p.now {
			continue
		}
		s, least, since := State{}, unsampled, false
		for _, x := range p.events {
			if x.at > p.now {
				break
			}
			if owed := s.owed(x.at); since && x.at > e.at && owed.less(least) {
				least = owed
			}
			if x.real < 0 {
				s = p.m.token.forgive(s, x.at, -x.real)
				if owed := s.owed(x.at); since && owed.less(least) {
					least = owed
				}
			} else if x.real > 0 {
				s = p.m.token.spend(s, x.at, x.real)
			}
			since = since || x == e
		}
		if s.owed(p.now) != (span{}) && least != (span{}) {
			all[least] = true
		}
	}
	return len(all)
}

// A list loses nothing if it has an entry for each different least debt, and with grants one more.
func TestAsManyLeastDebtsAsFitAreKeptApart(t *testing.T) {
	defer func(n int) { maxOpens = n }(maxOpens)
	full := 0
	for seed := range uint64(testsize.Of(4_000, 100_000)) {
		maxOpens = 2 + int(seed%3)
		p := newPast(rand.New(rand.NewPCG(seed, 7)), seed%2 == 1)
		p.atOnce = true
		for range 40 {
			p.do()
			n := p.leasts()
			if p.grants {
				n++ // while an instant lasts, its spendings before and after a grant have separate entries
			}
			if n > maxOpens {
				break
			} else if n == maxOpens {
				full++
			}
			require.Equal(t, p.replayed(), p.base(), "seed %d: %v", seed, p)
		}
	}
	require.Greater(t, full, 1000)
}

// Two reservations are made at one instant. A grant and the settlement of the first give back their whole
// debt. Then a third is made at the same instant. The settlement of the second gives back nothing of it.
func TestASettledReservationGivesBackNothingOfALaterOneOfItsInstant(t *testing.T) {
	for _, keep := range []Keep{Booked, Open} {
		m := New(Limit{Kind: TokenBucket, Units: 1, Per: 10, Burst: 100, Horizon: 1 << 40, Most: 1 << 50})
		var s State
		reserve := func(keep Keep) Spending {
			o := m.Take(&s, Moment{5, 5}, 10, 0, keep)
			require.False(t, o.Denied(5))
			sp := o.Spending(10)
			sp.Open = keep == Open
			return sp
		}
		a, b := reserve(keep), reserve(Open)
		m.Adjust(&s, 5, -15)
		m.Settle(&s, 5, a, 0)
		require.Zero(t, s.owed(5))
		reserve(Open)
		m.Settle(&s, 5, b, 0)
		require.Equal(t, span{ticks: 100}, s.owed(5))
	}
}

// A charge beyond the maximum debt is cut. Earlier reservations give
// back nothing then: with their real costs the debt would be as large.
func TestAReservationGivesBackNothingOfADebtThatIsCut(t *testing.T) {
	for _, ahead := range []int64{0, 1000} {
		m := New(Limit{Kind: TokenBucket, Units: 1, Per: 10, Burst: 100, Horizon: 5000, Most: 1 << 50})
		var s State
		require.True(t, m.Allow(&s, 0, 50))
		o := m.Take(&s, Moment{1, 1}, 30, 0, Open)
		sp := o.Spending(30)
		sp.Open = true
		if ahead > 0 {
			require.False(t, m.Take(&s, Moment{1, 1}, 90, ahead, Open).Denied(1))
		}
		m.Adjust(&s, 1, 600)
		require.Equal(t, int64(400), m.Debt(s, 1))
		m.Settle(&s, 1, sp, 0)
		m.Refresh(&s)
		require.Equal(t, int64(400), m.Debt(s, 1))
	}
}

func TestNothingStaysOfSettledOrRegainedReservations(t *testing.T) {
	m := New(Limit{Kind: TokenBucket, Units: 1, Per: 10, Burst: 100, Horizon: 1 << 40, Most: 1 << 50})
	var s State
	reserve := func(now int64) Spending {
		o := m.Take(&s, Moment{now, now}, 10, 0, Open)
		require.False(t, o.Denied(now))
		sp := o.Spending(10)
		sp.Open = true
		return sp
	}
	a, b := reserve(1), reserve(2)
	m.Settle(&s, 3, b, 10)
	require.True(t, s.OnHeap())
	m.Settle(&s, 3, a, 12)
	require.False(t, s.OnHeap())

	reserve(4) // it is never settled
	require.True(t, m.Allow(&s, 5, 1))
	require.True(t, s.OnHeap())
	require.True(t, m.Allow(&s, m.Regained(s), 1))
	require.False(t, s.OnHeap(), "all is regained")
}
