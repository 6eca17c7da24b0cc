package pace

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// line is the queue of one key's requests, and what the key's server has said.
//
// A request arrives, books an instant in the limiter, is sent at that instant, and is
// answered. Requests book in the order of their arrival, one at a time, and are sent in
// that order. When the server says that they have to wait, all bookings are cancelled, and
// all requests in the queue book again, in order, when the wait is over.
//
// The queue is in the order of tickets, and those with a booking are its first ones. So the
// head has a booking, and a timer for it, or it is the one that may book next, and has a
// timer or waits for something under way: the limiter's answer, a cancellation, or the answer
// to a request in flight. Each of these wakes it.
//
// Only the head has a timer. Whoever holds the lock sends it if its time has come, and all
// behind it whose time has come too. So of many that wait for one instant, each wakes once,
// and takes no lock for that.
type line struct {
	pkg string // the package that the texts of errors name
	key string

	// Guarded by Pacer.mu.
	users int       // requests that hold the line
	ends  time.Time // if there are none, when what the server has said ends
	at    int       // and where in Pacer.idle the line is

	mu       sync.Mutex               // guards all below
	queue    []*Place                 // by ticket
	booked   int                      // how many have a booking: the first ones in the queue
	head     *Place                   // it has a booking and knows that it is the first
	tickets  uint64                   // how many were given out
	flights  []flight                 // requests sent and not answered, in the order of their numbers, and some that were
	landed   int                      // how many of flights were answered
	sent     uint64                   // how many requests were sent
	until    time.Time                // the server has said to send nothing before
	budgets  []Budget                 // what it has said to be left
	heard    map[string]uint64        // of each policy, the number of the latest request whose answer told of it
	refusals refusals                 // in a row
	backedAt uint64                   // sent at the last of these
	booking  *Place                   // it is asking the limiter; nil if none is
	undone   []*ratelimit.Reservation // to be cancelled when the booking place is back
	undoing  int                      // cancellations of bookings under way
	window   int                      // how many may be in flight; 0 means any number
	narrowed uint64                   // sent when the window was last set to one
	silent   uint64                   // up to this number the window is wider already: nothing came when a refusal would have come
	wideAt   time.Time                // when the window ends at the latest
}

// flight is a request that was sent and is not answered.
type flight struct {
	seq    uint64
	units  int64
	at     time.Time // not before that of any with a lower number
	landed bool      // it is answered, and will be dropped with others
}

// Place is one request's place in the queue of its key.
type Place struct {
	line     *line
	ctx      context.Context
	deadline time.Time     // by when it must be sent; zero if there is none
	units    int64         // what it counts in budgets that count units
	wake     chan struct{} // has room for one
	repeated bool          // it was sent before; only its own goroutine uses this

	// sent is set when the place has left the queue to be sent. From then on only its own
	// goroutine uses what follows.
	sent  atomic.Bool
	spent *ratelimit.Reservation // the booking with which it was sent
	seq   uint64                 // number of the request

	landed atomic.Bool // it was sent, and is answered

	// Guarded by line.mu.
	ticket  uint64
	res     *ratelimit.Reservation // nil if nothing is booked
	at      time.Time              // when it may be sent, or if nothing is booked, ask the limiter again
	waiting bool                   // it is in the queue
}

// step is what a place has to do next.
type step uint8

const (
	stepWait step = iota // until it is woken, or an instant has come
	stepBook             // ask the limiter
	stepSend             // be sent: it leaves the queue
	stepFail             // it cannot be sent before the instant, which is too late
)

// never is a time that does not come.
var never time.Time

// arrive puts a request at the end of the queue.
func (l *line) arrive(ctx context.Context, units int64, maxWait time.Duration) *Place {
	p := &Place{line: l, ctx: ctx, units: units, wake: make(chan struct{}, 1)}
	p.deadline, _ = ctx.Deadline()
	if maxWait > 0 {
		if d := time.Now().Add(maxWait); p.deadline.IsZero() || d.Before(p.deadline) {
			p.deadline = d
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tickets++
	p.ticket, p.waiting = l.tickets, true
	l.queue = append(l.queue, p)
	return p
}

// again puts a request that was sent back to its place: before all that came later. It
// returns the bookings of these, which do not hold any more: the request books before them.
func (p *Place) again() []*ratelimit.Reservation {
	l := p.line
	p.repeated = true
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.indexLocked(p)
	l.queue = slices.Insert(l.queue, at, p)
	p.at, p.waiting = time.Time{}, true
	p.sent.Store(false)
	p.landed.Store(false)
	if at >= l.booked {
		return nil
	}
	l.booked++ // for the moment, as if it had one
	return l.unbookLocked(at)
}

// indexLocked returns where in the queue a place is, or belongs.
func (l *line) indexLocked(p *Place) int {
	at, _ := slices.BinarySearchFunc(l.queue, p.ticket, func(q *Place, ticket uint64) int { return cmp.Compare(q.ticket, ticket) })
	return at
}

// left returns how long the request can wait.
func (p *Place) left(now time.Time) time.Duration {
	if p.deadline.IsZero() {
		return math.MaxInt64
	}
	return p.deadline.Sub(now)
}

// isLate reports whether an instant is past the deadline.
func (p *Place) isLate(at time.Time) bool { return !p.deadline.IsZero() && at.After(p.deadline) }

// Late reports whether the server has said to send nothing until after the deadline.
func (p *Place) Late() bool {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	return p.isLate(p.line.opensLocked())
}

// Opens returns the instant before which the server wants nothing to be sent.
func (p *Place) Opens() time.Time {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	return p.line.opensLocked()
}

// tooLate is the error of a request that may not be sent before its time is over.
func (p *Place) tooLate(until time.Time) error {
	now := time.Now()
	reason := ratelimit.ErrLimited
	if d, ok := p.ctx.Deadline(); ok && !p.deadline.Before(d) {
		reason = context.DeadlineExceeded
	}
	return fmt.Errorf("%s: %w: the next request may be sent in %v, and this one can wait for %v",
		p.line.pkg, reason, until.Sub(now).Round(time.Millisecond), max(0, p.left(now)).Round(time.Millisecond))
}

// sleep waits until the place is woken, or the instant has come, or the context ends. It may
// have been sent meanwhile.
func (p *Place) sleep(until time.Time) error {
	if until == never || p.isLate(until) {
		if until = p.deadline; until != never {
			until = until.Add(1) // when it is past
		}
	}
	var c <-chan time.Time
	if until != never {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		c = t.C
	}
	select {
	case <-c:
	case <-p.wake:
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
	return nil
}

// next returns what to do, and until when. If it is to send, the place has left the queue.
func (p *Place) next(now time.Time) (todo step, until time.Time) {
	if p.sent.Load() {
		return stepSend, never
	}
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if !p.waiting {
		return stepSend, never
	}
	todo, until = l.stepLocked(p, now)
	switch todo {
	case stepBook:
		l.booking = p
	case stepSend:
		l.wakeLocked(now)
	}
	return todo, until
}

// sendLocked takes the head out of the queue, to be sent.
func (l *line) sendLocked(now time.Time) {
	p := l.queue[0]
	if n := len(l.flights); n > 0 && now.Before(l.flights[n-1].at) {
		now = l.flights[n-1].at // the clock was read before the lock was taken
	}
	p.spent = l.removeLocked(p)
	l.sent++
	p.seq = l.sent
	l.flights = append(l.flights, flight{seq: p.seq, units: p.units, at: now})
	p.sent.Store(true)
	p.rouse()
}

// stepLocked returns what a place in the queue has to do, and until when.
func (l *line) stepLocked(p *Place, now time.Time) (step, time.Time) {
	l.expireLocked(now)
	l.passSilentLocked(now)
	switch {
	case p.ctx.Err() != nil:
		return stepWait, never // which ends at once
	case p.isLate(now):
		return stepFail, now
	case p.res == nil:
		return l.bookingStepLocked(p, now)
	case l.queue[0] != p:
		return stepWait, never
	case now.Before(p.at):
		return stepWait, p.at
	}
	return stepSend, never
}

// bookingStepLocked is stepLocked for a place that has nothing booked.
func (l *line) bookingStepLocked(p *Place, now time.Time) (step, time.Time) {
	opens := l.earliestLocked(p, now)
	switch {
	case p.isLate(opens):
		return stepFail, opens
	case l.firstLocked() != p || l.booking != nil || l.undoing > 0:
		return stepWait, never
	case now.Before(opens):
		return stepWait, opens
	case !l.roomLocked(p, now):
		return stepWait, l.changesLocked(now)
	}
	return stepBook, never
}

// booked takes note of the limiter's answer. It returns bookings to be cancelled: if the
// server has said to wait in the meantime, this one and those before it.
func (p *Place) booked(res *ratelimit.Reservation, err error, cost int, now time.Time) ([]*ratelimit.Reservation, error) {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	cancel := l.backLocked()
	switch {
	case err != nil:
		cancel = append(cancel, res)
	case res == nil || !res.Allowed:
		err = p.deniedLocked(res, cost, now)
	case l.firstLocked() != p || now.Before(l.opensLocked()) || !l.roomLocked(p, now):
		cancel = append(cancel, res)
	default:
		p.res, p.at = res, now.Add(res.Delay)
		l.booked++
	}
	l.undoLocked(cancel)
	l.wakeLocked(now)
	return cancel, err
}

// backLocked is called when the place that was asking the limiter is back. It returns what is to
// be cancelled now.
func (l *line) backLocked() (undone []*ratelimit.Reservation) {
	undone, l.undone = l.undone, nil
	l.booking = nil
	return undone
}

// deniedLocked decides what to do about a denial: ask again, or give up.
func (p *Place) deniedLocked(res *ratelimit.Reservation, cost int, now time.Time) error {
	var d ratelimit.Decision
	if res != nil {
		d = res.Decision
	}
	full := d.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket && cost > d.Remaining
	if full || d.RetryAfter <= 0 {
		return fmt.Errorf("%s: %w: cost %d is denied under %v", p.line.pkg, ratelimit.ErrLimited, cost, d.Limit)
	}
	if p.at = now.Add(d.RetryAfter); p.isLate(p.at) {
		return p.tooLate(p.at)
	}
	return nil
}

// leave takes the place out of the queue, if it is there, and returns its booking. If the
// limiter has panicked, it also ends the place's booking. A request that was sent and has
// learned nothing, as whoever sends it has panicked, is not in flight any more.
func (p *Place) leave() (bookings []*ratelimit.Reservation) {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if !p.waiting {
		l.loseLocked(p.seq)
		return nil
	}
	return p.leaveLocked()
}

// giveUp is leave for a place that does not wait any longer. It reports false if it was sent
// meanwhile.
func (p *Place) giveUp() (bookings []*ratelimit.Reservation, left bool) {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if !p.waiting {
		return nil, false
	}
	return p.leaveLocked(), true
}

func (p *Place) leaveLocked() (bookings []*ratelimit.Reservation) {
	l := p.line
	res := l.removeLocked(p)
	if l.booking == p {
		bookings = l.backLocked()
	}
	if res != nil {
		bookings = append(bookings, res)
	}
	l.undoLocked(bookings)
	l.wakeLocked(time.Now())
	return bookings
}

// loseLocked ends a request that may be in flight and whose answer nobody will learn.
func (l *line) loseLocked(seq uint64) {
	if f := l.landLocked(seq); f.seq > 0 {
		l.spendLocked(f, nil) // the server may have counted it
		l.wakeLocked(time.Now())
	}
}

// removeLocked takes a place out of the queue, and returns its booking.
func (l *line) removeLocked(p *Place) (res *ratelimit.Reservation) {
	if i := l.indexLocked(p); i == 0 {
		l.queue[0], l.queue = nil, l.queue[1:]
	} else {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	if l.head == p {
		l.head = nil
	}
	if p.waiting = false; p.res != nil {
		res, p.res = p.res, nil
		l.booked--
	}
	return res
}

// undoLocked keeps all places from booking until the bookings have been cancelled.
func (l *line) undoLocked(bookings []*ratelimit.Reservation) {
	if len(bookings) > 0 {
		l.undoing++
	}
}

// cancelled is called when the bookings of one undoLocked have been cancelled.
func (l *line) cancelled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.undoing--
	l.wakeLocked(time.Now())
}

// firstLocked returns the first place that has nothing booked.
func (l *line) firstLocked() *Place {
	if l.booked == len(l.queue) {
		return nil
	}
	return l.queue[l.booked]
}

// maxSent bounds how many places are sent under one hold of the lock. The next head sends more. A
// lock that is held for long is handed from one goroutine to the next, which costs more than
// what they do with it.
const maxSent = 32

// wakeLocked sends those at the head whose time has come, and wakes those who may have something
// to do: a new head, to set its timer, and the first that has nothing booked.
func (l *line) wakeLocked(now time.Time) {
	for n := 0; l.booked > 0 && n < maxSent; n++ {
		if todo, _ := l.stepLocked(l.queue[0], now); todo != stepSend {
			break
		}
		l.sendLocked(now)
	}
	if l.booked > 0 && l.head != l.queue[0] {
		l.head = l.queue[0]
		l.head.rouse()
	}
	if p := l.firstLocked(); p != nil && l.booking == nil && l.undoing == 0 {
		p.rouse()
	}
}

func (p *Place) rouse() {
	select {
	case p.wake <- struct{}{}:
	default: // it is awake, or will be
	}
}

// opensLocked returns the instant before which the server wants nothing to be sent.
func (l *line) opensLocked() time.Time {
	opens := l.until
	for _, b := range l.budgets {
		if b.Left <= 0 && b.Until.After(opens) {
			opens = b.Until
		}
	}
	return opens
}

// earliestLocked returns the earliest instant at which a place can be sent: when the
// server allows it, when the place before it has asked for an instant again, and, if more
// are before it than are left, after the reset.
func (l *line) earliestLocked(p *Place, now time.Time) time.Time {
	earliest := l.opensLocked()
	if first := l.firstLocked(); first != nil && first.at.After(earliest) {
		earliest = first.at
	}
	for _, b := range l.budgets {
		if b.Until.After(earliest) && b.Until.After(now) && !l.fitsLocked(p, b) {
			earliest = b.Until
		}
	}
	return earliest
}

// fitsLocked reports whether a budget has enough left for a place and all before it.
func (l *line) fitsLocked(p *Place, b Budget) bool {
	if !b.Units {
		return b.Left >= int64(len(l.queue)) || int64(l.indexLocked(p)) < b.Left
	}
	left := b.Left - p.units
	for i := 0; left >= 0 && l.queue[i] != p; i++ {
		left -= l.queue[i].units
	}
	return left >= 0
}

// counted is how long after it was sent a request is sure to be counted by its server.
// What the server says to be left does not tell how many of the younger ones it has
// counted.
const counted = time.Second

// moreUncountedLocked reports whether more than n requests are booked, or in flight and too young
// at an instant to be sure to be counted.
func (l *line) moreUncountedLocked(n int64, at time.Time) bool {
	n -= int64(l.booked)
	if n < 0 || int64(len(l.flights)-l.landed) <= n {
		return n < 0
	}
	for _, f := range l.youngLocked(at) {
		if !f.landed {
			if n--; n < 0 {
				return true
			}
		}
	}
	return false
}

// youngLocked returns the requests in flight that are too young at an instant to be sure to be
// counted, and some that have landed.
func (l *line) youngLocked(at time.Time) []flight {
	old, _ := slices.BinarySearchFunc(l.flights, at.Add(-counted), func(f flight, t time.Time) int {
		if f.at.After(t) {
			return 1
		}
		return -1
	})
	return l.flights[old:]
}

// usesMoreLocked reports whether the uncounted requests use more than that of a budget.
func (l *line) usesMoreLocked(b Budget, left int64) bool {
	if !b.Units {
		return l.moreUncountedLocked(left, b.told)
	}
	for _, p := range l.queue[:l.booked] {
		left -= p.units
	}
	for _, f := range l.youngLocked(b.told) {
		if !f.landed {
			left -= f.units
		}
	}
	return left < 0
}

// roomLocked reports whether a request may be sent beside those that are booked and in
// flight.
func (l *line) roomLocked(p *Place, now time.Time) bool {
	return (l.window == 0 || !l.moreUncountedLocked(int64(l.window)-1, now)) && !l.exceededLocked(now, p)
}

// exceededLocked reports whether the uncounted requests, and one more if there is one, are
// above what the server leaves.
func (l *line) exceededLocked(now time.Time, more *Place) bool {
	return slices.ContainsFunc(l.budgets, func(b Budget) bool {
		left := b.Left
		switch {
		case more != nil && b.Units:
			left -= more.units
		case more != nil:
			left--
		}
		return now.Before(b.Until) && l.usesMoreLocked(b, left)
	})
}

// changesLocked returns the next instant at which there may be room, if no response comes
// before.
func (l *line) changesLocked(now time.Time) time.Time {
	next := l.resetLocked(now)
	young := l.youngLocked(now)
	if i := slices.IndexFunc(young, func(f flight) bool { return !f.landed }); i >= 0 {
		if at := young[i].at.Add(counted); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// resetLocked returns the next instant at which a budget is over.
func (l *line) resetLocked(now time.Time) (reset time.Time) {
	for _, b := range l.budgets {
		if now.Before(b.Until) && (reset.IsZero() || b.Until.Before(reset)) {
			reset = b.Until
		}
	}
	return reset
}

// memory returns when what the server has said ends, and whether the line is to be kept until then, or for its window.
func (l *line) memory(now time.Time) (ends time.Time, keep bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends = l.until
	for _, b := range l.budgets {
		if b.Until.After(ends) {
			ends = b.Until
		}
	}
	return ends, now.Before(ends) || l.window > 0 && now.Before(l.wideAt)
}

// learn takes note of what the response to a request says. It returns the bookings that
// do not hold any more, in their order.
func (l *line) learn(seq uint64, a Advice, now time.Time) []*ratelimit.Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.landLocked(seq)
	before := l.opensLocked()
	if a.Wait > 0 { // it is what counts, and more precise than a budget's end
		l.closeLocked(now.Add(a.Wait))
		l.budgets = slices.DeleteFunc(l.budgets, func(b Budget) bool { return b.seq <= seq })
		a.Budgets = nil
	}
	if a.Wait > 0 || a.Refused {
		l.backOffLocked(seq, a.Wait > 0 || exhausted(a.Budgets, now), now)
	}
	l.widenLocked(f, a, now)
	l.spendLocked(f, a.Budgets)
	for _, b := range a.Budgets {
		b.seq, b.sent, b.told = seq, f.at, now
		l.setLocked(b, f.units)
	}
	if l.opensLocked() != before {
		for _, p := range l.queue {
			p.rouse() // some may not have the time
		}
	}
	defer l.wakeLocked(now)
	if !now.Before(l.opensLocked()) && !l.exceededLocked(now, nil) {
		return nil
	}
	return l.unbookLocked(0)
}

// reset forgets what the server has said, and what follows from it. Bookings stay.
func (l *line) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until, l.budgets, l.window = time.Time{}, nil, 0
	l.refusals, l.backedAt = refusals{}, l.sent
	l.wakeLocked(time.Now())
}

// landLocked takes a request out of those in flight, and returns it: zero if it was not
// there. Requests are answered in any order. So they are dropped together, when they are half
// of what is kept.
func (l *line) landLocked(seq uint64) flight {
	i, found := l.findFlightLocked(seq)
	if !found || l.flights[i].landed {
		return flight{}
	}
	f := l.flights[i]
	l.flights[i].landed = true
	if l.landed++; 2*l.landed >= len(l.flights) {
		l.flights = slices.DeleteFunc(l.flights, func(f flight) bool { return f.landed })
		l.landed = 0
		if len(l.flights) < cap(l.flights)/8 && cap(l.flights) > 64 {
			l.flights = slices.Clone(l.flights)
		}
	}
	return f
}

// findFlightLocked returns where in those in flight a request is, or would be.
func (l *line) findFlightLocked(seq uint64) (at int, found bool) {
	return slices.BinarySearchFunc(l.flights, seq, func(f flight, seq uint64) int { return cmp.Compare(f.seq, seq) })
}

// exhausted reports whether a budget says by itself that nothing may be sent.
func exhausted(budgets []Budget, now time.Time) bool {
	return slices.ContainsFunc(budgets, func(b Budget) bool { return b.Left == 0 && now.Before(b.Until) })
}

// wideEnough is the window from which on any number of requests may be in flight.
const wideEnough = 64

// narrowFor is how long after a wait the window holds, unless it is wide enough before.
// It outlives the queue for that time: those who come next may come all at once.
const narrowFor = time.Minute

// widenLocked sets how many requests may be in flight: after a refusal one, so that not
// all who wait are refused again at once, and one more with each that is served of those
// that were sent after it.
func (l *line) widenLocked(f flight, a Advice, now time.Time) {
	switch {
	case a.Refused || a.Wait > 0:
		l.narrowLocked(now)
	case a.Answered:
		l.refusals = refusals{}
		l.passLocked(f)
	}
}

func (l *line) narrowLocked(now time.Time) {
	l.window, l.narrowed, l.wideAt = 1, l.sent, now.Add(narrowFor)
	if l.until.After(now) {
		l.wideAt = l.until.Add(narrowFor)
	}
}

// passLocked widens the window for a request that was not refused.
func (l *line) passLocked(f flight) {
	if l.window > 0 && f.seq > max(l.narrowed, l.silent) {
		l.window = (l.window + 1) % wideEnough
	}
}

// passSilentLocked widens the window for requests of which nothing has come yet: a refusal
// would have come by now. So silent streams do not hold up the others one by one.
func (l *line) passSilentLocked(now time.Time) {
	if !now.Before(l.wideAt) {
		l.window = 0
	}
	if l.window == 0 {
		return
	}
	first, _ := l.findFlightLocked(l.silent + 1)
	for old := len(l.flights) - len(l.youngLocked(now)); first < old; first++ {
		if !l.flights[first].landed {
			l.passLocked(l.flights[first])
		}
		l.silent = l.flights[first].seq
	}
}

func (l *line) closeLocked(until time.Time) {
	if until.After(l.until) {
		l.until = until
	}
}

// refusals counts those that told a time, and those that told none.
type refusals struct{ timed, timeless int }

// The wait after the first refusal that tells no time, after the second in a row that tells one, and the longest of
// these. Each further refusal doubles it.
const (
	firstBackoff = time.Second
	leastBackoff = 10 * time.Millisecond
	maxBackoff   = time.Minute
)

// backOffLocked waits after a refusal, for at least as long as the server has said. A time that the server tells is
// obeyed as it is, unless a request that obeyed it is refused again: then the server's times are too short. Refusals of
// requests that were sent before the last one was received count as that one.
func (l *line) backOffLocked(seq uint64, told bool, now time.Time) {
	if seq <= l.backedAt {
		return
	}
	l.backedAt = l.sent
	wait := time.Duration(0)
	switch {
	case !told:
		wait = firstBackoff << min(l.refusals.timeless, 10)
		l.refusals.timeless++
	default:
		if l.refusals.timed > 0 {
			wait = leastBackoff << min(l.refusals.timed-1, 20)
		}
		l.refusals.timed++
	}
	l.closeLocked(now.Add(min(wait, maxBackoff)))
}

// spendLocked counts a request that is not in flight any more in the budgets of which its
// response says nothing.
func (l *line) spendLocked(f flight, told []Budget) {
	for i := range l.budgets {
		b := &l.budgets[i]
		same := func(t Budget) bool { return t.Policy == b.Policy }
		if f.seq <= b.seq || slices.ContainsFunc(told, same) {
			continue
		}
		if b.Units {
			b.Left -= f.units
		} else {
			b.Left--
		}
	}
}

// maxBudgets bounds how many policies of one server are kept.
const maxBudgets = 16

// expireLocked forgets budgets whose time is over. What the server leaves after one that was
// used up, its next response tells.
func (l *line) expireLocked(now time.Time) {
	over := func(b Budget) bool { return !now.Before(b.Until) }
	for _, b := range l.budgets {
		if over(b) && l.usesMoreLocked(b, b.Left-1) {
			l.narrowLocked(now)
		}
	}
	l.budgets = slices.DeleteFunc(l.budgets, over)
}

// setLocked keeps what a response says to be left. Requests overtake each other on their way, and so do responses. An
// answer never replaces that to a request that was sent later. One that leaves more counts only if its request was sent
// after the other response was received.
func (l *line) setLocked(b Budget, units int64) {
	l.expireLocked(b.told)
	if !b.told.Before(b.Until) {
		return
	}
	i := slices.IndexFunc(l.budgets, func(old Budget) bool { return old.Policy == b.Policy })
	switch {
	case b.seq < l.heard[b.Policy]:
		if i >= 0 {
			l.budgets[i].count(b, units)
		}
		return
	case i >= 0:
		if old := l.budgets[i]; b.Left <= old.Left || b.sent.After(old.told) {
			l.budgets[i] = b
		}
	case len(l.budgets) < maxBudgets:
		l.budgets = append(l.budgets, b)
	}
	l.hearLocked(b)
}

// count counts a request in what the answer to a later one leaves, if the server may have counted it afterwards.
func (b *Budget) count(earlier Budget, units int64) {
	if !earlier.sent.After(b.told.Add(-counted)) || earlier.Left >= b.Left {
		return
	}
	if !b.Units {
		units = 1
	}
	b.Left -= units
}

// hearLocked notes which request's answer has told of a policy. What it forgets is the policy that was told of first.
func (l *line) hearLocked(b Budget) {
	if l.heard == nil {
		l.heard = map[string]uint64{}
	}
	l.heard[b.Policy] = b.seq
	if len(l.heard) <= maxBudgets {
		return
	}
	oldest := b
	for policy, seq := range l.heard {
		if seq < oldest.seq {
			oldest.Policy, oldest.seq = policy, seq
		}
	}
	delete(l.heard, oldest.Policy)
}

// unbookLocked takes back the bookings of the places from an index on. It returns those that
// are to be cancelled now. A place that is asking the limiter cancels them when it is back,
// after its own, which is the last.
func (l *line) unbookLocked(from int) (bookings []*ratelimit.Reservation) {
	for _, p := range l.queue[from:l.booked] {
		if p.res != nil {
			bookings, p.res, p.at = append(bookings, p.res), nil, time.Time{}
		}
	}
	l.booked = from
	if l.booking != nil {
		l.undone = append(l.undone, bookings...)
		return nil
	}
	l.undoLocked(bookings)
	return bookings
}
