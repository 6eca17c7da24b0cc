package ratelimittest

import (
	"math/big"
	"time"

	"github.com/weir-go/ratelimit"
)

// book computes one key's decisions from the algorithms' definitions, without regard for speed. Each figure
// of a Decision follows from the spending that counts at an instant, if nothing more is spent before.
type book struct {
	history *history
	model   model
	guess   ratelimit.Decision // the limiter's decision, if it is known: trying it first saves a search
}

// model is one algorithm's state. Instants never decrease.
type model interface {
	// used returns the spending that counts at an instant, in whole units, rounded up.
	used(at time.Duration) int
	spend(at time.Duration, cost int)
}

func (h *history) newBook() *book { return &book{history: h, model: h.newModel(h.limit)} }

func (h *history) newModel(l ratelimit.Limit) model {
	switch l.Algorithm {
	case ratelimit.AlgorithmCalendar:
		return &calendarModel{units: l.Rate.Units, dates: datesOf(l.Period), wallAt: h.wallAt}
	case ratelimit.AlgorithmFixedWindow:
		return &fixedModel{units: l.Rate.Units, per: l.Rate.Per}
	case ratelimit.AlgorithmSlidingLog:
		return &logModel{per: l.Rate.Per}
	case ratelimit.AlgorithmSlidingCounter:
		return &counterModel{per: l.Rate.Per}
	default:
		return &bucketModel{units: big.NewInt(int64(l.Rate.Units)), per: big.NewInt(int64(l.Rate.Per))}
	}
}

// decide returns the expected Decision of Take, and records the charge.
func (b *book) decide(now time.Duration, cost int) ratelimit.Decision {
	if cost == 0 || b.retryAfter(now, cost) > 0 {
		return b.peek(now, cost)
	}
	d := ratelimit.Decision{Allowed: true, Limit: b.history.limit, Delay: b.delay(now)}
	b.model.spend(now, cost)
	d.Remaining, d.ResetAfter = b.remaining(now), b.resetAfter(now)
	d.NextAfter = b.nextAfter(now, d.Remaining)
	return d
}

// delay returns how long a leaky bucket delays a request: until all earlier requests have left.
func (b *book) delay(now time.Duration) time.Duration {
	if b.history.limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
		return 0
	}
	return b.after(now, 0, b.guess.Delay)
}

// peek returns the expected Decision of Peek.
func (b *book) peek(now time.Duration, cost int) ratelimit.Decision {
	d := ratelimit.Decision{Limit: b.history.limit, Remaining: b.remaining(now), ResetAfter: b.resetAfter(now)}
	d.RetryAfter, d.NextAfter = b.retryAfter(now, cost), b.nextAfter(now, d.Remaining)
	d.Allowed = d.RetryAfter == 0
	if d.Allowed && cost > 0 {
		d.Delay = b.delay(now)
	}
	return d
}

func (b *book) remaining(now time.Duration) int {
	return max(0, b.history.limit.Capacity()-b.model.used(now))
}

func (b *book) retryAfter(now time.Duration, cost int) time.Duration {
	if cost == 0 {
		return 0
	}
	return b.after(now, b.history.limit.Capacity()-cost, b.guess.RetryAfter)
}

// nextAfter returns the time until at least one unit remains.
func (b *book) nextAfter(now time.Duration, remaining int) time.Duration {
	if remaining > 0 {
		return 0
	}
	return b.after(now, b.history.limit.Capacity()-1, b.guess.NextAfter)
}

func (b *book) resetAfter(now time.Duration) time.Duration {
	return b.after(now, 0, b.guess.ResetAfter)
}

// after returns the shortest time after which at most the given units count. One
// unit of time earlier, more units count. The guess only shortens the search.
func (b *book) after(now time.Duration, most int, guess time.Duration) time.Duration {
	unit := b.history.cfg.Resolution
	fits := func(n time.Duration) bool { return b.model.used(now+n*unit) <= most }
	if fits(0) {
		return 0
	}
	no, yes := time.Duration(0), time.Duration(1)
	if n := guess / unit; n > 0 && n < time.Duration(centuries)/unit && fits(n) {
		if yes = n; !fits(n - 1) {
			no = n - 1
		}
	}
	for !fits(yes) {
		no, yes = yes, 2*yes
	}
	for yes-no > 1 {
		if mid := no + (yes-no)/2; fits(mid) {
			yes = mid
		} else {
			no = mid
		}
	}
	return yes * unit
}

// bucketModel is a token or leaky bucket: the sum of the spending, less rate·t for the time since, but
// not below 0. It counts in fractions of 1/per of a unit, and regains Units of them each nanosecond.
type bucketModel struct {
	units, per *big.Int
	owed       big.Int
	at         time.Duration

	left, span, rest big.Int // scratch space, because the figures are computed very often
}

// owedAt returns the bucket's spending at an instant. The result is valid until the next call.
func (a *bucketModel) owedAt(at time.Duration) *big.Int {
	back := a.left.Mul(a.units, a.span.SetInt64(int64(at-a.at)))
	owed := back.Sub(&a.owed, back)
	if owed.Sign() < 0 {
		owed.SetInt64(0)
	}
	return owed
}

func (a *bucketModel) used(at time.Duration) int {
	owed := a.owedAt(at)
	owed.QuoRem(owed, a.per, &a.rest)
	if a.rest.Sign() > 0 {
		return int(owed.Int64()) + 1
	}
	return int(owed.Int64())
}

func (a *bucketModel) spend(at time.Duration, cost int) {
	owed := a.owedAt(at)
	a.owed.Add(owed, a.span.Mul(a.span.SetInt64(int64(cost)), a.per))
	a.at = at
}

// fixedModel counts in windows that begin with the first spending after the end
// of the last one. The excess over a window's units counts in the next windows.
type fixedModel struct {
	units int
	per   time.Duration
	start time.Duration
	spent int
}

func (a *fixedModel) used(at time.Duration) int {
	over := (at - a.start) / a.per
	if over > time.Duration(a.spent/a.units) {
		return 0
	}
	return max(0, a.spent-int(over)*a.units)
}

func (a *fixedModel) spend(at time.Duration, cost int) {
	left := a.used(at)
	if left == 0 {
		a.start = at
	} else {
		a.start += (at - a.start) / a.per * a.per
	}
	a.spent = left + cost
}

// calendarModel counts in a calendar's windows. A key stays in its window until a later one begins,
// even if the wall clock is set back. The excess over a window's units counts in the next windows.
type calendarModel struct {
	units  int
	dates  *dates
	wallAt func(at time.Duration) time.Time
	in     window // the key's present window
	spent  int
}

// rolled returns the model's state at an instant.
func (a *calendarModel) rolled(at time.Duration) calendarModel {
	r, wall := *a, a.wallAt(at)
	for r.spent > 0 && !wall.Before(r.in.to) {
		r.spent = max(0, r.spent-r.units)
		r.in = a.dates.at(r.in.to)
	}
	if r.spent == 0 && !wall.Before(r.in.to) {
		r.in = a.dates.at(wall)
	}
	return r
}

func (a *calendarModel) used(at time.Duration) int {
	r := a.rolled(at)
	return r.spent
}

func (a *calendarModel) spend(at time.Duration, cost int) {
	*a = a.rolled(at)
	a.spent += cost
}

// logModel records every spending.
type logModel struct {
	per  time.Duration
	at   []time.Duration
	cost []int
}

func (a *logModel) used(at time.Duration) (sum int) {
	for i, t := range a.at {
		if t <= at && at-t < a.per {
			sum += a.cost[i]
		}
	}
	return sum
}

func (a *logModel) spend(at time.Duration, cost int) {
	for len(a.at) > 0 && at-a.at[0] >= a.per {
		a.at, a.cost = a.at[1:], a.cost[1:]
	}
	a.at, a.cost = append(a.at, at), append(a.cost, cost)
}

// counterModel has a count for the present window and one for the window before.
type counterModel struct {
	per        time.Duration
	start      time.Duration
	prev, curr int
}

// rolled returns the model's state at an instant.
func (a *counterModel) rolled(at time.Duration) counterModel {
	switch over := (at - a.start) / a.per; {
	case over == 0:
		return *a
	case over == 1 && a.curr > 0:
		return counterModel{per: a.per, start: a.start + a.per, prev: a.curr}
	default:
		return counterModel{per: a.per, start: at}
	}
}

func (a *counterModel) used(at time.Duration) int {
	r := a.rolled(at)
	overlap := new(big.Int).Mul(big.NewInt(int64(r.prev)), big.NewInt(int64(r.per-(at-r.start))))
	overlap.Add(overlap, big.NewInt(int64(r.per-1)))
	return r.curr + int(overlap.Div(overlap, big.NewInt(int64(r.per))).Int64())
}

func (a *counterModel) spend(at time.Duration, cost int) {
	*a = a.rolled(at)
	if a.prev == 0 && a.curr == 0 {
		a.start = at
	}
	a.curr += cost
}
