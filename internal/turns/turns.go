// Package turns puts one process's callers in line for a budget in a store such as Redis.
//
// Only a line's first callers call the store; the others wait in this process, and the store does
// not know them. So a leaving caller costs no call and leaves no hole, and a changed limit
// reaches all callers. The store keeps a few bookings for each process, however long the line is.
//
// A call to the store either books an instant or is denied. A denied caller stays first, and calls again when it
// may succeed. The first caller in line books as far ahead as necessary, so it keeps its place. The callers
// behind it book at most [Horizon] ahead. A stack of limits books nothing: a denial names the line for the caller
// to wait in. In a line with bookings, the next caller books when the last booking is nearly due: one and a half
// round trips before, to bridge the time for its own call. The later it books, the fewer callers leave with a
// booking. As many calls are under way as the rate serves in this time, fewer if other processes book, too. If a
// caller leaves during its call, the next one takes the call's booking. Processes take turns at a budget.
//
// A booking further ahead than [Horizon] may be tentative: if the process falls silent,
// the store gives the booking back, so that nobody waits for a dead process. Shortly
// before the instant, the line confirms the booking; until then it serves nobody.
//
// At low load a caller calls the store once, in one round trip, as if there were no line.
package turns

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/wait"
)

const (
	// Horizon is the maximum time ahead for which a waiting caller books, unless it is alone in its line. If a
	// process dies, its bookings block others for at most this time, because a booking further ahead is tentative.
	Horizon = time.Second

	maxBooked = 16 // how many callers in a line may have a booking while the budget is used up
	maxCalls  = 4  // how many calls may be under way beyond the room reported by the last answer
	maxTries  = 256
	maxLoad   = 64 // other processes' maximum load, as a multiple of the process's own
	minAhead  = 5 * time.Millisecond
	repeat    = 100 * time.Millisecond // the time until a failed confirmation is repeated
	slack     = 50 * time.Microsecond  // a retry's delay after the announced instant, because another clock has measured it
)

// Pace is a limit's rate: Units in each Per. If AtOnce, the limit has windows, and regains all units
// together. Otherwise it regains them one by one. The zero Pace stands for an unknown rate, or for no limit.
type Pace struct {
	Units  int
	Per    time.Duration
	Burst  int // a token bucket's capacity
	AtOnce bool
	Spaced bool // a queue lets each unit out after the one before it
}

// span returns the mean time until a cost is regained.
func (p Pace) span(cost int64) time.Duration {
	return time.Duration(min(float64(cost)*float64(p.Per)/float64(max(1, p.Units)), math.MaxInt64/4))
}

// Request is a caller's request to the store.
type Request struct {
	Cost  int           // the caller's cost without the units that it takes from callers who have left
	Ahead time.Duration // how far ahead the store may book

	// Between allows an instant before other processes' bookings, but after After: a caller that has left
	// may have made room there. The other bookings stay. If false, the instant comes after all bookings.
	Between bool
	After   int64 // the [Answer.At] of this line's latest booking; 0 if none

	Early bool // a try that comes too early according to the last denial: it succeeds only if the budget has grown since

	// Instead is this caller's booking, as [Answer.Ref]. An allowed call
	// replaces it in the same decision. It is nil if the caller has none.
	Instead any
}

// Answer is the store's answer to a caller.
type Answer[K comparable] struct {
	Allowed bool
	Delay   time.Duration // if allowed: the time until the booked instant
	Retry   time.Duration // if denied: the time until another call may succeed
	Here    bool          // Retry counts from the answer, by a clock of this process
	At      int64         // if allowed: the booked instant by the store's clock, in the store's units
	Pace    Pace

	Remaining int // if allowed: the remaining budget

	// Life changes when the store forgets the key's spending and bookings. It is 0 if unknown.
	Life uint64

	Ref    any  // identifies the booking, so that the store can replace it
	Unsure bool // the call has failed, and may have booked

	// If a try is denied: the line for the caller to wait in, and its call's cost to that line's budget.
	Line K
	Cost int

	// Late is the time until a denied try can be served at the earliest, if later than Retry. If a booking is denied because
	// its instant is too far ahead for the store, Late is the time until that instant, and the store can book it after Retry.
	Late time.Duration

	// Settle replaces the booked cost by the actual cost. It may be nil.
	Settle func(actual int) error

	// Confirm makes a tentative booking lasting. It reports false if the store has given the booking back because
	// this process was silent: then there is nothing to settle. It is nil if the booking is not tentative.
	Confirm func() (bool, error)
}

// Unfinished is a call's error if its caller has left before the answer
// came. The call goes on, and the next callers take its booking.
type Unfinished[K comparable] struct {
	Err    error                     // the caller's
	Answer func() (Answer[K], error) // waits for the answer
}

func (e *Unfinished[K]) Error() string { return e.Err.Error() }

// Unwrap returns the caller's error.
func (e *Unfinished[K]) Unwrap() error { return e.Err }

// Lines holds a line for each budget. The zero Lines is ready to use.
type Lines[K comparable] struct {
	mu    sync.Mutex
	lines map[K]*line[K]
}

var arrivals atomic.Uint64

// arrival returns the number by which the line orders a call. A
// call that starts again, perhaps in other Lines, keeps its number.
func arrival(ctx context.Context) uint64 {
	c := wait.RenewableOf(ctx)
	if c == nil {
		return arrivals.Add(1)
	}
	if c.Number == 0 {
		c.Number = arrivals.Add(1)
	}
	return c.Number
}

// line holds one budget's callers. The lock of its Lines guards it.
type line[K comparable] struct {
	key         K
	first, last *caller[K] // callers without a call or a booking, in the order of their arrival
	waiting     int
	cost        int64         // these callers' cost
	calls       int           // calls under way
	called      int64         // these calls' cost
	booked      *caller[K]    // a list of the callers with bookings
	bookings    int           // how many callers have bookings
	regain      int64         // the units regained in a round trip
	room        int64         // the room reported by the last answer, less the units used by calls since
	remaining   int64         // the remaining units in the answer to the last decided call
	remainedAt  time.Time     // that answer's time
	known       bool          // an answer has set the room: from then on a call beyond the room might be overtaken
	equal       int           // the cost of each call under way; 0 if they differ
	due         time.Time     // the latest booking's instant; in a line of tries, the instant when the budget was, or will be, 0
	again       time.Time     // according to a denial, no call can succeed before this time
	start       time.Time     // according to a denial, the next cost is regained from this time on
	polled      time.Time     // the time of the last answer
	trip        time.Duration // a round trip's mean time, smoothed
	least       time.Time     // the earliest instant when the budget can be 0 after the calls under way have arrived
	own, all    float64       // mean times: for a booking by this line, and for all bookings since the one before it
	tail        time.Time     // the instant in the last answer; unlike due, without the calls under way
	pace        Pace
	changes     int          // how often all callers had to book again
	stale       int          // calls that began before the last change
	moves       int          // how often the budget may have grown
	pool        []*part      // booked units without a caller, for the next callers
	anew        int          // callers that must give their bookings back before they call again: nobody else calls before them
	giving      []*caller[K] // callers that are giving their bookings back
	booking     uint64       // the latest booking's number
	sorted      []*caller[K] // scratch memory for a list
	ends        bool         // a timer will check whether the line still has parts
}

// caller is a waiting caller.
type caller[K comparable] struct {
	number     uint64 // its arrival's number
	cost       int
	need       int // the cost still to book: its cost without its shares
	shares     []share
	far        bool          // it may book as far ahead as necessary
	between    bool          // it may book before others' bookings
	after      int64         // if between: not before this instant
	tries      bool          // its calls book nothing
	early      bool          // if it tries: see [Request.Early]
	changes    int           // its line's changes when its call began
	moves      int           // its line's moves when its call began
	since      uint64        // the latest booking's number when its call began
	budgets    []Budget[K]   // all budgets charged by its calls, if they book nothing
	wake       chan struct{} // has a buffer for one element
	panics     any           // the value with which a call to move its booking up has panicked
	state      state
	prev, next *caller[K] // its neighbours in the line, or in the list of callers with bookings
}

// part holds units booked by one call. When their caller leaves, the next callers take them.
// So a leaving caller costs no call, and leaves no hole before the bookings behind it.
type part struct {
	settle     func(actual int) error
	due        time.Time
	at         int64 // due by the store's clock
	cost, free int
	pace       Pace   // the limit's pace at the time of the booking
	users      int    // callers that wait for it
	void       bool   // it must be given back, and nobody takes it
	life       uint64 // the key's life
	number     uint64 // the booking's number
	ref        any    // the store's reference to the booking, to replace it
	moving     bool   // a call replaces it

	confirm    func() (bool, error) // nil unless the booking is tentative
	confirming bool                 // a goroutine calls confirm
	confirmAt  time.Time            // the earliest instant for the next call
	failed     error                // the last call's error
	lost       bool                 // the store has given the booking back
}

// next returns the instant when the free units are due. In a queue, the units held by other callers leave first.
func (p *part) next() time.Time {
	n := int64(p.cost - p.free)
	if !p.pace.Spaced || n == 0 {
		return p.due
	}
	return p.due.Add(p.pace.span(n) + time.Microsecond) // at the earliest, by the store's clock
}

// share holds some of a part's units.
type share struct {
	of  *part
	n   int
	due time.Time
}

type state uint8

const (
	isWaiting state = iota
	isCalling
	isBooked
	isAnew // it had a booking, and calls again
	isGone
)

// LateError is the error for a caller whose turn is expected after its deadline.
type LateError struct {
	In time.Duration // the time until the turn
}

func (e *LateError) Error() string {
	return "the line is too long: the turn comes in about " + e.In.String()
}

// Unwrap returns context.DeadlineExceeded.
func (e *LateError) Unwrap() error { return context.DeadlineExceeded }

// Wait has a caller book once it is among the first in its line, and sleeps until its turn. call books its Request's
// cost, or is denied. If call fails, Wait returns its error; if that is an [Unfinished], it returns the caller's
// error. If the context ends before the turn, Wait gives the booking back, and returns the context's error. If giving
// it back fails, that error is joined. If the turn would come after the deadline, Wait returns a [LateError] at once.
func (ls *Lines[K]) Wait(ctx context.Context, key K, cost int, call func(Request) (Answer[K], error)) error {
	c := &caller[K]{cost: cost, wake: make(chan struct{}, 1)}
	return ls.wait(ctx, key, c, call)
}

// Budget is a key that a try charges, and the cost charged to the key.
type Budget[K comparable] struct {
	Key    K
	Cost   int
	Stands bool // the caller stands in its line: see [Lines.Try]
}

// Try calls until an answer allows the call. It waits in one line at a time: first in one of its budgets'
// lines, if others wait there, and then in the line named by the denial. It returns the same errors as Wait.
//
// A Try that starts again goes to the line of the budget with Stands set, and does not call before
// it is first there. If it fails, it sets Stands for the budget in whose line it has stood.
func (ls *Lines[K]) Try(ctx context.Context, budgets []Budget[K], call func(Request) (Answer[K], error)) error {
	c := &caller[K]{tries: true, budgets: budgets, wake: make(chan struct{}, 1)}
	ls.mu.Lock()
	c.number = arrival(ctx)
	b, busy := ls.busyLocked(c, nil)
	if i := slices.IndexFunc(budgets, func(b Budget[K]) bool { return b.Stands }); i >= 0 {
		b, busy, budgets[i].Stands = budgets[i], true, false
	}
	key := b.Key
	c.cost = b.Cost
	ls.mu.Unlock()
	if !busy { // as at low load
		if _, err := wait.Left(ctx); err != nil {
			return err
		}
		a, err := call(Request{})
		switch {
		case err != nil:
			return err
		case a.Allowed:
			return sleepOut(wait.Charged(ctx), a)
		}
		if err := late(ctx, a); err != nil {
			return err
		}
		key, c.cost = a.Line, a.Cost
		ls.mu.Lock()
		ls.line(key).denied(time.Now(), c.cost, 0, a)
		ls.mu.Unlock()
	}
	return ls.wait(ctx, key, c, call)
}

// late returns an error if a denied caller cannot be served before its deadline.
func late[K comparable](ctx context.Context, a Answer[K]) error {
	left, err := wait.Left(ctx)
	if in := max(a.Retry, a.Late); err == nil && in > left {
		err = &LateError{In: in}
	}
	return err
}

// sleepOut waits until the booked instant. If the context ends first, it gives the booking back.
func sleepOut[K comparable](ctx context.Context, a Answer[K]) error {
	left, err := wait.Left(ctx)
	if err == nil && a.Delay > left {
		err = &LateError{In: a.Delay}
	}
	if err == nil {
		err = wait.Sleep(ctx, a.Delay)
	}
	if err == nil {
		return nil
	}
	return undone(err, a)
}

// undone gives a booking back, and returns err. If giving it back fails, that error is joined.
func undone[K comparable](err error, a Answer[K]) error {
	if a.Settle == nil {
		return err
	}
	return also(err, a.Settle(0))
}

// also joins second to err, unless second is nil.
func also(err, second error) error {
	if second == nil {
		return err
	}
	return errors.Join(err, second)
}

// wait puts a caller in line, and serves it when its turn comes.
func (ls *Lines[K]) wait(ctx context.Context, key K, c *caller[K], call func(Request) (Answer[K], error)) error {
	left, err := wait.Left(ctx)
	if err != nil {
		return err
	}
	ls.mu.Lock()
	l := ls.line(key)
	now := time.Now()
	if c.number == 0 {
		c.number = arrival(ctx)
	}
	if in := l.estimate(now, c.cost); in > left && (l.last == nil || c.number > l.last.number) {
		ls.dropLocked(l)
		ls.mu.Unlock()
		return &LateError{In: in}
	}
	l.insert(c)
	ls.pumpLocked(l, now)
	ls.mu.Unlock()
	for {
		done := false
		if l, err = ls.mayCall(ctx, l, c); err == nil {
			done, err = ls.serve(ctx, &l, c, call)
		}
		if err != nil {
			for i := range c.budgets {
				c.budgets[i].Stands = c.budgets[i].Key == l.key
			}
		}
		if done || err != nil {
			return err
		}
	}
}

// mayCall waits until a caller may call the store. It returns the caller's line, which may have changed.
func (ls *Lines[K]) mayCall(ctx context.Context, l *line[K], c *caller[K]) (*line[K], error) {
	var timer *time.Timer
	stop := func() {
		if timer != nil {
			timer.Stop()
		}
	}
	defer func() { stop() }()
	for {
		ls.mu.Lock()
		now := time.Now()
		ls.pumpLocked(l, now)
		if c.state == isCalling && c.tries { // c must not overtake a caller that came earlier and waits in another line
			if b, busy := ls.busyLocked(c, l); busy {
				l.endCall(c)
				l.due = l.due.Add(-l.pace.span(int64(c.need)))
				ls.leftLocked(l) // there is nothing to give back, because tries book nothing
				l, c.cost = ls.line(b.Key), b.Cost
				l.insert(c)
				ls.pumpLocked(l, now)
			}
		}
		called, at := c.state == isCalling, time.Time{}
		if l.first == c {
			_, at = l.ready(c, now)
		}
		in := l.start.Sub(now)
		select {
		case <-c.wake: // this round handles the wake-up
		default:
		}
		ls.mu.Unlock()
		if called {
			return l, nil
		}
		if left, err := wait.Left(ctx); c.tries && err == nil && in > left {
			ls.mu.Lock()
			spare := ls.departLocked(l, c)
			ls.mu.Unlock()
			return l, also(&LateError{In: in}, giveBack(spare))
		}
		stop()
		var due <-chan time.Time
		if timer = nil; !at.IsZero() { // only the first caller has a timer
			timer = time.NewTimer(at.Sub(now))
			due = timer.C
		}
		select {
		case <-c.wake:
		case <-due:
		case <-ctx.Done():
			ls.mu.Lock()
			spare := ls.departLocked(l, c)
			ls.mu.Unlock()
			return l, also(ctx.Err(), giveBack(spare))
		}
	}
}

// serve calls the store for a caller and waits for the booked instant. If the caller
// has to wait in line again, it reports false and sets *lp to the caller's line.
func (ls *Lines[K]) serve(ctx context.Context, lp **line[K], c *caller[K], call func(Request) (Answer[K], error)) (done bool, err error) {
	l := *lp
	left, err := wait.Left(ctx)
	ended := false
	defer func() { // the line goes on, even if the call panics
		if !ended {
			ls.mu.Lock()
			spare := ls.departLocked(l, c)
			ls.mu.Unlock()
			err = also(err, giveBack(spare))
		}
	}()
	if err != nil {
		return false, err
	}
	a, begin := Answer[K]{Allowed: true}, time.Now()
	called, ahead := c.need > 0 || c.tries, time.Duration(0)
	if called {
		ahead = min(left, Horizon)
		if c.far {
			ahead = left
		}
		a, err = call(Request{Cost: c.need, Ahead: ahead, Between: c.between, After: c.after, Early: c.early})
		if u, goesOn := err.(*Unfinished[K]); goesOn {
			ended = true
			return false, also(u.Err, giveBack(ls.leaveCall(l, c, begin, ahead, u)))
		}
		if err != nil {
			return false, err
		}
	}
	now := time.Now()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ended = true
	l.endCall(c)
	stale := c.changes != l.changes // the answer's figures come from an earlier limit
	if called && !stale {
		l.answered(now, now.Sub(begin), a)
	}
	forgot := l.forget(c, a.Life)
	switch {
	case !a.Allowed && stale:
		l.release(c)
		l.insert(c)
		ls.pumpLocked(l, now)
		return false, nil
	case !a.Allowed:
		l.deniedTo(c, now, ahead, a)
		l.release(c)
		to, err := ls.moveLocked(l, c, a, left)
		if err == nil {
			*lp = to
			return false, nil
		}
		spare := ls.leftLocked(l)
		ls.mu.Unlock()
		defer ls.mu.Lock()
		return false, also(err, giveBack(spare))
	case c.tries:
		l.taken(now, a.Remaining)
		c.state = isGone
		ls.leftLocked(l)
		ls.mu.Unlock()
		defer ls.mu.Lock()
		return true, sleepOut(wait.Charged(ctx), a)
	case called:
		p := l.partOf(c, now, a, stale)
		p.users = 1
		c.shares = append(c.shares, share{p, c.need, p.due})
	}
	yields := (stale || forgot) && l.behind(c)
	l.putBooked(c)
	l.reconsider(c, now)
	if stale || yields || c.holds((*part).gone) || c.moves != l.moves && l.far(c, now) {
		l.bookAnew(c)
	}
	spare := ls.leftLocked(l)
	ls.mu.Unlock()
	defer ls.mu.Lock()
	goBack(spare)
	return ls.sleep(ctx, l, c, yields, call)
}

// partOf returns the part booked by a call.
func (l *line[K]) partOf(c *caller[K], now time.Time, a Answer[K], stale bool) *part {
	if !stale {
		a.Remaining = int(l.remains(now, c, a))
		l.bookedAt(now, c.need, a)
	}
	l.booking++
	return &part{settle: a.Settle, due: now.Add(a.Delay), at: a.At, cost: c.need, pace: a.Pace, void: stale, life: a.Life, number: l.booking,
		ref: a.Ref, confirm: a.Confirm, confirmAt: now.Add(a.Delay - Horizon)}
}

// leaveCall removes a caller whose call is under way. When the answer comes, the
// other callers take its booking. leaveCall returns the parts to be given back.
func (ls *Lines[K]) leaveCall(l *line[K], c *caller[K], begin time.Time, ahead time.Duration, u *Unfinished[K]) []*part {
	go func() {
		a, err := u.Answer()
		now := time.Now()
		ls.mu.Lock()
		l.endCall(c)
		if stale := c.changes != l.changes; err == nil {
			if !stale {
				l.answered(now, now.Sub(begin), a)
			}
			l.forget(c, a.Life)
			if a.Allowed {
				p := l.partOf(c, now, a, stale)
				p.free = p.cost
				l.pool = append(l.pool, p)
				l.sortPool()
			} else if !stale {
				l.deniedTo(c, now, ahead, a)
			}
		}
		spare := ls.leftLocked(l)
		ls.mu.Unlock()
		_ = giveBack(spare)
	}()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	c.state = isGone
	l.release(c)
	return ls.leftLocked(l)
}

// moveLocked puts a denied caller back into its line, or into the line named by the answer.
func (ls *Lines[K]) moveLocked(l *line[K], c *caller[K], a Answer[K], left time.Duration) (*line[K], error) {
	to := l
	if c.tries && a.Line != l.key {
		to = ls.line(a.Line)
		to.pace = a.Pace
		to.denied(time.Now(), a.Cost, 0, a)
	}
	retry := max(a.Retry, a.Late)
	if retry > left {
		c.state = isGone
		ls.dropLocked(to)
		return nil, &LateError{In: retry}
	}
	if c.tries {
		c.cost = a.Cost
	}
	to.insert(c)
	if to != l {
		ls.leftLocked(l)
	}
	ls.pumpLocked(to, time.Now())
	return to, nil
}

// sleep waits until a caller's units are due. It reports false if the caller has to call again, because its booking
// is gone or an earlier one may be possible. A yielding caller gives way to earlier callers that must book again.
func (ls *Lines[K]) sleep(ctx context.Context, l *line[K], c *caller[K], yields bool, call func(Request) (Answer[K], error)) (done bool, _ error) {
	left, err := wait.Left(ctx)
	ls.mu.Lock()
	if delay := time.Until(c.due()); err == nil && delay > left {
		err = &LateError{In: delay}
	}
	looks := c.far && !yields && time.Until(c.due()) > Horizon
	for err == nil {
		delay := time.Until(c.due())
		lasting, next := true, delay
		if !yields {
			lasting, next, err = ls.confirmLocked(l, c, delay)
		}
		moving := delay <= 0 && c.holds((*part).isMoving)
		if c.panics != nil {
			l.removeBooked(c)
			spare := ls.departLocked(l, c)
			ls.mu.Unlock()
			goBack(spare)
			panic(c.panics)
		}
		if done = delay <= 0 && len(c.shares) > 0 && !yields && lasting && !moving; done || c.state == isAnew || err != nil {
			break
		}
		if err = ctx.Err(); err != nil {
			break
		}
		if moving {
			next = math.MaxInt64 // until another goroutine rouses the caller
		}
		if at := delay - Horizon; looks && at > 0 {
			next = min(next, at)
		} else if looks && lasting {
			looks = false
			ls.advanceLocked(l, c, call)
		}
		delay = next
		ls.mu.Unlock()
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-c.wake:
		case <-ctx.Done():
		}
		timer.Stop()
		ls.mu.Lock()
	}
	l.removeBooked(c)
	switch {
	case done:
		l.use(c)
		c.state = isGone
		spare := ls.leftLocked(l)
		ls.mu.Unlock()
		goBack(spare) // in a goroutine: a served caller does not wait for the store
		return true, nil
	case err != nil:
		spare := ls.departLocked(l, c)
		ls.mu.Unlock()
		return true, also(err, giveBack(spare))
	}
	for _, s := range c.shares {
		s.of.void = s.of.void || !yields // if the caller yields, earlier callers may take the units
	}
	l.anew++ // nobody calls until the units are given back
	l.giving = append(l.giving, c)
	l.release(c)
	spare := l.spare(time.Now())
	ls.mu.Unlock()
	err = giveBack(spare)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.giving = slices.DeleteFunc(l.giving, func(x *caller[K]) bool { return x == c })
	if l.anew--; err != nil {
		c.state = isGone
		spare = ls.leftLocked(l)
		goBack(spare)
		return false, err
	}
	l.due = l.latest()
	l.insert(c)
	ls.pumpLocked(l, time.Now())
	return false, nil
}

// due returns the instant when all of a caller's units are due.
func (c *caller[K]) due() (at time.Time) {
	for _, s := range c.shares {
		at = later(at, s.at())
	}
	return at
}

// at returns the instant when a share's units are due.
func (s share) at() time.Time {
	if s.of.pace.Spaced {
		return s.due
	}
	return s.of.due // the part may have moved
}

// latestAt returns the last booking's instant by the store's clock; 0 if there is none.
func (l *line[K]) latestAt() (at int64) {
	for b := l.booked; b != nil; b = b.next {
		for _, s := range b.shares {
			at = max(at, s.of.at)
		}
	}
	return at
}

// giveBack gives the parts' free units back to the store, the last part's first.
func giveBack(parts []*part) (err error) {
	for i := len(parts) - 1; i >= 0; i-- {
		if p := parts[i]; p.settle != nil {
			err = also(err, p.settle(p.cost-p.free))
		}
	}
	return err
}

func goBack(parts []*part) {
	if len(parts) > 0 {
		go func() { _ = giveBack(parts) }()
	}
}

// take gives free units to a caller, the earliest first, and computes how many more it needs.
func (l *line[K]) take(c *caller[K]) {
	c.need = c.cost
	for i := 0; i < len(l.pool) && c.need > 0; {
		p := l.pool[i]
		n := min(p.free, c.need)
		if p.void {
			n = 0
		}
		if n > 0 {
			c.shares = append(c.shares, share{p, n, p.next()})
			p.free -= n
			p.users++
			c.need -= n
		}
		if p.free == 0 {
			l.pool = slices.Delete(l.pool, i, i+1)
		} else {
			i++
		}
	}
	if len(l.pool) > 1 {
		l.sortPool()
	}
}

// vacant counts the free units that a caller could take.
func (l *line[K]) vacant() (n int) {
	for _, p := range l.pool {
		if !p.void {
			n += p.free
		}
	}
	return n
}

// release returns a caller's units to the pool.
func (l *line[K]) release(c *caller[K]) {
	for _, s := range c.shares {
		if s.of.free == 0 {
			l.pool = append(l.pool, s.of)
		}
		s.of.free += s.n
		s.of.users--
	}
	c.shares = nil
	l.sortPool()
}

func (l *line[K]) sortPool() {
	slices.SortStableFunc(l.pool, func(a, b *part) int { return a.next().Compare(b.next()) })
}

// use ends a served caller's claim to its units.
func (l *line[K]) use(c *caller[K]) {
	for _, s := range c.shares {
		s.of.users--
	}
	c.shares = nil
}

// spare removes from the pool the parts to be given back to the store, and returns them:
// the void parts and, if nobody waits, all parts except the ones that stay for a while.
func (l *line[K]) spare(now time.Time) (parts []*part) {
	l.pool = slices.DeleteFunc(l.pool, func(p *part) bool {
		switch {
		case p.users > 0 || p.moving || !p.void && (l.first != nil || l.anew > 0 || l.stays(p, now)):
			return false
		case p.lost: // the store has given it back
		case p.void || !l.regained(p, now):
			parts = append(parts, p)
		}
		return true
	})
	return parts
}

// stays reports whether a part stays for the next caller although nobody waits. Such a part is
// due, and a bucket takes back less of it each moment. So the part is more useful to the next
// caller, unless more than half can be given back now. After the horizon nothing would be left.
func (l *line[K]) stays(p *part, now time.Time) bool {
	if p.due.After(now) || !now.Before(p.due.Add(Horizon)) || !l.regained(p, p.due.Add(Horizon)) {
		return false
	}
	lost := now.Add(l.trip).Sub(p.due) - l.pace.span(int64(p.cost-p.free))
	return lost > l.pace.span(int64(p.free))/2
}

// regained reports whether a bucket has regained a part's units. Then they cannot be given back.
func (l *line[K]) regained(p *part, now time.Time) bool {
	return l.pace.Units > 0 && !l.pace.AtOnce && !now.Before(p.due.Add(l.pace.span(int64(p.cost))))
}

// Expected returns the time until a cost could be spent behind all callers in line, or 0 if nobody waits.
func (ls *Lines[K]) Expected(key K, cost int) time.Duration {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.lines[key]
	if l == nil {
		return 0
	}
	return l.estimate(time.Now(), cost)
}

// Moved makes a line's first caller call the store at once, because its budget may
// have more room. A caller that has booked more than [Horizon] ahead calls again, too.
func (ls *Lines[K]) Moved(key K) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.lines[key]
	if l == nil {
		return
	}
	now := time.Now()
	for c := l.booked; c != nil; c = c.next {
		if l.far(c, now) {
			l.bookAnew(c)
		}
	}
	l.moves++
	l.again, l.polled, l.remainedAt = time.Time{}, time.Time{}, time.Time{}
	ls.pumpLocked(l, now)
}

// far reports whether a booking is so far ahead that its caller calls again when the budget may
// have more room. A booking in the next window is far: the present window may have room now.
func (l *line[K]) far(c *caller[K], now time.Time) bool {
	most := Horizon
	if windows := l.pace.AtOnce || l.pace.Units == 0; windows {
		most = l.ahead()
	}
	return c.due().Sub(now) > most
}

// Changed makes all callers with bookings, in the lines that match, give them back and book
// again, and then the others. It is called when the limit has changed or the bookings are gone.
func (ls *Lines[K]) Changed(matches func(K) bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	for key, l := range ls.lines {
		if !matches(key) {
			continue
		}
		l.changes++
		l.stale = l.calls
		l.again, l.due, l.start, l.pace, l.room, l.regain = time.Time{}, time.Time{}, now, Pace{}, 0, 0 // the first caller calls alone
		l.remainedAt = time.Time{}
		l.least, l.tail = time.Time{}, time.Time{}
		for c := l.booked; c != nil; c = c.next {
			l.bookAnew(c)
		}
		for _, p := range l.pool {
			p.void = true
		}
		goBack(l.spare(now))
		ls.pumpLocked(l, now)
	}
}

// line returns a key's line.
func (ls *Lines[K]) line(key K) *line[K] {
	l := ls.lines[key]
	if l == nil {
		if l = (&line[K]{key: key}); ls.lines == nil {
			ls.lines = map[K]*line[K]{}
		}
		ls.lines[key] = l
	}
	return l
}

// busyLocked returns one of a caller's budgets in whose line earlier callers
// wait: the one where its turn comes last. It ignores the line passed as except.
func (ls *Lines[K]) busyLocked(c *caller[K], except *line[K]) (b Budget[K], busy bool) {
	var latest time.Time
	for _, x := range c.budgets {
		l := ls.lines[x.Key]
		if l == nil || l == except || l.first == nil || l.first.number > c.number {
			continue
		}
		if at := later(l.again, l.due); !busy || at.After(latest) {
			b, busy, latest = x, true, at
		}
	}
	return b, busy
}

// departLocked removes a leaving caller. It returns the parts to be given back.
func (ls *Lines[K]) departLocked(l *line[K], c *caller[K]) []*part {
	switch c.state {
	case isWaiting:
		l.remove(c)
	case isCalling:
		l.endCall(c)
		if l.steady() && !c.tries { // callers behind it come earlier than computed
			l.least = l.least.Add(-l.pace.span(int64(c.need)))
			l.due = later(l.due.Add(-l.spanOf(int64(c.need))), later(l.least, l.latest()))
		}
	}
	c.state = isGone
	l.release(c)
	return ls.leftLocked(l)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// leftLocked lets a line's next callers go on after a call has ended
// or a caller has left. It returns the parts to be given back.
func (ls *Lines[K]) leftLocked(l *line[K]) []*part {
	now := time.Now()
	ls.pumpLocked(l, now)
	spare := l.spare(now)
	ls.dropLocked(l)
	return spare
}

// dropLocked forgets a line without callers. If parts remain, it keeps only these, and forgets the line later.
func (ls *Lines[K]) dropLocked(l *line[K]) {
	if l.first != nil || l.calls > 0 || l.bookings > 0 || l.anew > 0 || ls.lines[l.key] != l {
		return
	}
	if len(l.pool) == 0 {
		delete(ls.lines, l.key)
		return
	}
	*l = line[K]{key: l.key, pool: l.pool, pace: l.pace, trip: l.trip, booking: l.booking, ends: l.ends}
	if l.ends {
		return
	}
	l.ends = true
	time.AfterFunc(Horizon, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		l.ends = false
		goBack(l.spare(time.Now()))
		ls.dropLocked(l)
	})
}

// pumpLocked lets the line's first callers call if their time has come.
func (ls *Lines[K]) pumpLocked(l *line[K], now time.Time) {
	ls.orderLocked(l, now)
	for c := l.first; c != nil; c = l.first {
		if ok, _ := l.ready(c, now); !ok {
			c.rouse() // the caller sets its timer
			return
		}
		l.remove(c)
		c.state = isCalling
		c.early = c.tries && l.start.After(now)
		l.take(c)
		c.far = l.bookings == 0 && l.calls == 0
		if c.between = l.calls == 0; c.between { // the instants of calls under way are not known
			c.after = l.latestAt()
		}
		if l.calls == 0 {
			l.equal = c.need
		} else if l.equal != c.need {
			l.equal = 0
		}
		l.calls++
		c.changes, c.moves, c.since = l.changes, l.moves, l.booking
		l.called += int64(c.need)
		l.room -= int64(c.need)
		if l.steady() { // a bucket that is full when the call arrives has regained its burst at most
			l.least = later(l.least, now.Add(l.trip-l.pace.span(int64(max(1, l.pace.Burst))))).Add(l.pace.span(int64(c.need)))
		}
		switch {
		case l.pace.Units == 0:
		case c.tries:
			l.due = l.due.Add(l.pace.span(int64(c.need))) // when this call's cost is regained
			c.early = c.early || l.due.After(now)
		case l.due.After(now):
			l.due = later(l.due.Add(l.spanOf(int64(c.need))), l.least)
		}
		c.rouse()
	}
}

// ready reports whether the first caller may call now, or else when. The time is zero if it depends on others.
func (l *line[K]) ready(c *caller[K], now time.Time) (ok bool, at time.Time) {
	switch {
	case l.anew > 0 || l.stale > 0:
		return false, at
	case len(l.pool) > 0 && l.vacant() >= c.cost:
		return true, at
	case now.Before(l.again):
		return false, l.again
	case c.tries && l.pace.Units == 0:
		return l.calls < maxCalls, at
	case c.tries:
		if l.calls >= maxTries {
			return false, at
		}
		at = l.due.Add(l.pace.span(int64(c.cost)))
		if poll := l.polled.Add(Horizon); l.calls == 0 && poll.Before(at) {
			at = poll
		}
		return !at.After(now), at
	case !l.start.IsZero(): // the first caller was denied
		return l.calls == 0, at
	case !l.due.After(now):
		fits := l.room >= int64(c.cost) || l.calls < maxBooked && l.room+l.regain >= int64(c.cost)
		beyond := l.calls < maxCalls && (!l.known || c.cost == l.equal && !l.pace.AtOnce)
		return fits || beyond || l.calls == 0, at
	case l.bookings >= maxBooked || l.calls >= maxTries || l.pace.AtOnce && l.calls > 0: // a second call might miss the present window
		return false, at
	}
	at = l.due.Add(-l.ahead())
	return !at.After(now), at
}

// ahead returns how early the next booking is made: the time before the last booking is due.
func (l *line[K]) ahead() time.Duration {
	ahead := minAhead + l.trip + l.trip/2
	if l.steady() {
		ahead = min(ahead, l.trip+l.pace.span(maxBooked-1))
	}
	return min(ahead, Horizon)
}

// estimate returns the minimum time until a cost at the line's end is served; 0 if its caller may call now.
func (l *line[K]) estimate(now time.Time, cost int) time.Duration {
	if l.pace.Units == 0 || l.first == nil && (l.calls == 0 || !l.again.After(now)) && l.due.Sub(now) <= l.ahead() {
		return 0
	}
	ahead := l.cost + int64(cost)
	if !l.pace.AtOnce {
		return max(0, l.due.Add(l.pace.span(ahead)).Sub(now))
	}
	from := l.start
	if l.due.After(from) && (l.first == nil || !l.first.tries) {
		from = l.due
	}
	windows := (ahead+int64(l.pace.Units)-1)/int64(l.pace.Units) - 1
	return max(0, from.Sub(now)) + time.Duration(min(float64(max(0, windows))*float64(l.pace.Per), math.MaxInt64/4))
}

// answered records an answer's pace and its round trip.
func (l *line[K]) answered(now time.Time, trip time.Duration, a Answer[K]) {
	if l.trip == 0 {
		l.trip = trip
	}
	l.trip += (trip - l.trip) / 8
	if l.polled = now; a.Pace.Units > 0 {
		l.pace = a.Pace
	}
}

// denied records the denial to a try, or to a booking that would have been too far ahead.
func (l *line[K]) denied(now time.Time, cost int, ahead time.Duration, a Answer[K]) {
	l.pace, l.room, l.regain, l.least = a.Pace, 0, 0, time.Time{}
	l.start = now.Add(min(a.Retry, math.MaxInt64/4) + ahead)
	l.due = l.start.Add(-l.pace.span(int64(cost)))
	if l.again = now.Add(min(a.Retry, Horizon)); !a.Here {
		l.again = now.Add(min(max(0, a.Retry-l.trip/2), Horizon) + slack)
	}
}

// deniedTo records the denial to a caller. The caller has requested an instant at most ahead from now.
func (l *line[K]) deniedTo(c *caller[K], now time.Time, ahead time.Duration, a Answer[K]) {
	if c.tries || a.Late > 0 {
		ahead = 0
	}
	expected := l.due
	l.denied(now, c.need, ahead, a)
	if c.moves != l.moves {
		l.again, l.polled = time.Time{}, time.Time{}
	}
	if c.tries && l.start.Sub(expected) > Horizon { // the limit or the spending has changed, and some callers may be too late now
		for x := l.first; x != nil; x = x.next {
			x.rouse()
		}
	}
}

// taken records an allowed try and the remaining budget. Other calls under way may spend from it.
func (l *line[K]) taken(now time.Time, remaining int) {
	l.start = time.Time{}
	l.due = now.Add(-l.trip/2 - l.pace.span(int64(remaining)-l.called))
}

// remains returns the remaining units after an allowed call. If another answer has come since the call began, the
// store may have decided on the other call later. Then the lower figure holds, except for units regained since.
func (l *line[K]) remains(now time.Time, c *caller[K], a Answer[K]) int64 {
	remaining := int64(a.Remaining)
	if a.Delay > 0 {
		remaining = 0
	}
	if l.booking != c.since && !l.remainedAt.IsZero() {
		most := l.remaining
		if l.steady() {
			most += int64(float64(now.Sub(l.remainedAt)) / float64(l.pace.Per) * float64(l.pace.Units))
		}
		remaining = min(remaining, most)
	}
	l.remaining, l.remainedAt = remaining, now
	return remaining
}

// bookedAt records an allowed booking call: its instant, and the room left by it.
func (l *line[K]) bookedAt(now time.Time, cost int, a Answer[K]) {
	l.room, l.regain, l.start, l.known = 0, 0, time.Time{}, true
	due, busy := now.Add(a.Delay), a.Delay > 0
	if !busy {
		if l.room = int64(a.Remaining) - l.called; l.steady() {
			l.regain = int64(float64(l.trip) / float64(l.pace.Per) * float64(l.pace.Units))
		}
		due = due.Add(-l.pace.span(int64(a.Remaining)))
	}
	if l.steady() {
		l.weigh(due, busy, cost)
	}
	// Units given back since are free again.
	if most := later(due, now.Add(l.trip)).Add(l.pace.span(l.called)); l.calls == 0 {
		l.least = time.Time{}
	} else if l.least.After(most) {
		l.least = most
	}
	switch {
	case l.calls > 0 && l.steady(): // the calls under way come behind it, and spend the room left by it
		l.due = later(due.Add(l.spanOf(l.called)), later(l.least, l.latest()))
	case busy && (l.calls == 0 || due.After(l.due)):
		l.due = due
	case !busy && l.calls == 0:
		l.due = l.latest()
	}
}

// weigh estimates from an answer's instant how much others book between two of this process's calls.
func (l *line[K]) weigh(at time.Time, busy bool, cost int) {
	own := float64(l.pace.span(int64(cost)))
	all := own
	if busy && !l.tail.IsZero() {
		all = max(0, min(float64(at.Sub(l.tail)), maxLoad*own))
	}
	l.own += (own - l.own) / 8
	l.all += (all - l.all) / 8
	if at.After(l.tail) || !busy {
		l.tail = at
	}
}

// spanOf returns by how much the calls under way, at this cost,
// delay the next caller. Other processes' calls come between them.
func (l *line[K]) spanOf(cost int64) time.Duration {
	load := 1.
	if l.all > l.own {
		load = l.all / l.own
	}
	return time.Duration(load * float64(l.pace.span(cost)))
}

// steady reports whether units come back one by one, at a known rate.
func (l *line[K]) steady() bool { return l.pace.Units > 0 && !l.pace.AtOnce }

// latest returns the last booking's instant; zero if there is none.
func (l *line[K]) latest() (at time.Time) {
	for b := l.booked; b != nil; b = b.next {
		at = later(at, b.due())
	}
	return at
}

// bookAnew makes a caller give its booking back and call again.
func (l *line[K]) bookAnew(c *caller[K]) {
	if c.state == isBooked {
		c.state = isAnew
		l.anew++
		c.rouse()
	}
}

// insert puts a caller into the line, in the order of arrival.
func (l *line[K]) insert(c *caller[K]) {
	c.state = isWaiting
	before, after := l.last, l.first // c's place is next to one of these
	for before != nil && after != nil && before.number > c.number && after.number < c.number {
		before, after = before.prev, after.next
	}
	switch {
	case before == nil || before.number < c.number:
		if after = l.first; before != nil {
			after = before.next
		}
	default:
		before = after.prev
	}
	if c.prev, c.next = before, after; before == nil {
		l.first = c
	} else {
		before.next = c
	}
	if after == nil {
		l.last = c
	} else {
		after.prev = c
	}
	l.waiting++
	l.cost += int64(c.cost)
}

// remove takes a waiting caller out of the line.
func (l *line[K]) remove(c *caller[K]) {
	if c.prev == nil {
		l.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		l.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	l.waiting--
	l.cost -= int64(c.cost)
}

func (l *line[K]) endCall(c *caller[K]) {
	if l.calls--; c.changes != l.changes {
		l.stale--
	}
	l.called -= int64(c.need)
}

func (l *line[K]) putBooked(c *caller[K]) {
	c.state = isBooked
	if c.next = l.booked; c.next != nil {
		c.next.prev = c
	}
	l.booked = c
	l.bookings++
}

func (l *line[K]) removeBooked(c *caller[K]) {
	if c.state == isAnew {
		l.anew--
	}
	if c.prev == nil {
		l.booked = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	l.bookings--
}

func (c *caller[K]) rouse() {
	select {
	case c.wake <- struct{}{}:
	default: // it is awake, or will wake
	}
}
