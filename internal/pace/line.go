package pace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
)

// line is the queue of one key's requests. It obeys the key's server: it stays
// within the budgets in the server's answers, and backs off after refusals.
//
// A request arrives, books an instant in the limiter, is sent at this instant, and is answered. Requests book in the
// order of their arrival, one at a time, and are sent in the same order. If the head's booking is more than bookAhead
// ahead, the head waits with its reservation: its instant moves when the key or its limit changes. When the server
// demands a wait, all bookings are cancelled. After the wait, all requests in the queue book again, in order.
//
// The queue is ordered by tickets, and its first places have the bookings. So the head is in one of two states. In
// the first, it has a booking and a timer for it. In the second, it may book next, and either has a timer or waits
// for a call to end: a call to the limiter, a cancellation, or a request in flight. The end of each wakes the head.
//
// Only the head has a timer. While a goroutine holds the lock, it sends the head and all places behind it whose
// time has come. So if many places wait for the same instant, they wake once each, and need no lock for it.
type line struct {
	pkg   string // the package's name at the beginning of errors
	key   string
	slots int // the maximum number of requests with a slot; 0 for any number

	// Guarded by Pacer.mu.
	users int       // requests using the line
	ends  time.Time // without users, when the server's answers cease to matter
	at    int       // the line's index in Pacer.idle

	mu      sync.Mutex               // guards the fields below
	queue   []*Place                 // ordered by tickets
	booked  int                      // places with a booking: the first ones in the queue
	head    *Place                   // the first place, if it has a booking and was woken as the first
	tickets uint64                   // tickets issued
	booking *Place                   // the place calling the limiter, or nil
	undone  []*ratelimit.Reservation // to be cancelled when the limiter has answered the booking place
	vacant  []vacancy                // bookings whose places left during the call
	undoing int                      // cancellations under way
	held    int                      // slots of sent requests; each booking has a slot, too

	flights flights
	budgets budgets
	figures bool // whether the last answer to a served request had a trusted budget of requests
	misled  int  // requests to serve until figures are trusted again
	backoff backoff
	crowd   crowd
	rate    rate
}

// vacancy is a booking whose place left while another place called the limiter.
type vacancy struct {
	res  *ratelimit.Reservation
	at   time.Time
	cost int
}

// step is a place's next action.
type step uint8

const (
	stepWait   step = iota // wait until woken, or until an instant
	stepBook               // call the limiter
	stepFollow             // wait with the booking: its instant may move
	stepSend               // send the request: the place has left the queue
	stepFail               // fail, because the request cannot be sent in time
)

// misledFor is how long a server's figures are ignored, in served requests, after a refusal with most of the
// budget left. Another limit has caused such a refusal: for example, an even spacing, or an unreported limit.
const misledFor = 256

// bookAhead bounds how far ahead places book: while the last booking is further ahead, no other place books.
const bookAhead = 100 * time.Millisecond

// peekEach is the interval between a waiting place's peeks at its limiter, even if the denial's RetryAfter is longer.
const peekEach = time.Second

// never is the zero time. It stands for an instant that does not come.
var never time.Time

// arrive puts a request at the queue's end.
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

// again puts a sent request back into the queue, before all later ones. It returns the
// later requests' bookings. They must be cancelled, because this request books first.
func (p *Place) again() []*ratelimit.Reservation {
	l := p.line
	p.repeated, p.flies = true, false
	l.mu.Lock()
	defer l.mu.Unlock()
	p.releaseSlotLocked()
	at := l.indexLocked(p)
	l.queue = slices.Insert(l.queue, at, p)
	p.at, p.waiting = time.Time{}, true
	p.sent.Store(false)
	p.landed.Store(false)
	if at >= l.booked {
		return nil
	}
	l.booked++ // counts as a place with a booking until unbookLocked
	return l.unbookLocked(at)
}

// indexLocked returns a place's index in the queue, or the index for inserting it.
func (l *line) indexLocked(p *Place) int {
	at, _ := slices.BinarySearchFunc(l.queue, p.ticket, func(q *Place, ticket uint64) int { return cmp.Compare(q.ticket, ticket) })
	return at
}

// next returns the next step, and the instant until which the step
// is valid. If the step is stepSend, the place has left the queue.
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
	case stepFollow:
		l.followLocked(p)
	case stepSend: // the place is the first
		l.sendLocked(now) // send it even if its context has ended since
		l.wakeLocked(now)
	}
	return todo, until
}

// sendLocked removes the head from the queue, to be sent.
func (l *line) sendLocked(now time.Time) {
	p := l.queue[0]
	p.spent = l.removeLocked(p)
	p.seq = l.flights.depart(p.units, now)
	l.crowd.send(now)
	l.rate.send(now)
	p.slotted = true
	l.held++
	p.sent.Store(true)
	p.rouse()
}

// stepLocked returns a place's next step in the queue, and the instant until which the step is valid.
func (l *line) stepLocked(p *Place, now time.Time) (step, time.Time) {
	l.expireLocked(now)
	l.backoff.widenForSilent(&l.flights, now)
	switch {
	case p.ctx.Err() != nil, p.following != nil:
		return stepWait, never // the wait with the booking ends at once, or is woken
	case p.isLate(now):
		return stepFail, now
	case p.res == nil:
		return l.bookingStepLocked(p, now)
	case l.queue[0] != p:
		return stepWait, never
	case l.followsLocked(p, now):
		return stepFollow, p.at
	case now.Before(p.at):
		return stepWait, p.at
	}
	return stepSend, never
}

// bookingStepLocked is stepLocked for a place without a booking.
func (l *line) bookingStepLocked(p *Place, now time.Time) (step, time.Time) {
	opens := l.earliestLocked(p, now)
	likely := opens
	if first := l.firstLocked(); first.denied.After(likely) {
		likely = first.denied
	}
	switch {
	case p.isLate(likely):
		return stepFail, likely
	case l.firstLocked() != p || l.booking != nil || l.undoing > 0:
		return stepWait, never
	case now.Before(opens):
		return stepWait, opens
	case l.booked > 0 && l.queue[l.booked-1].at.After(now.Add(bookAhead)):
		return stepWait, l.queue[l.booked-1].at.Add(-bookAhead)
	case !l.roomLocked(p, now):
		return stepWait, l.changesLocked(now)
	}
	return stepBook, never
}

// booked records the limiter's answer. It returns the bookings to cancel. If the
// server has demanded a wait since, these are this booking and all before it.
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
		v := l.exchangeLocked(vacancy{res, now.Add(res.Delay), cost})
		p.res, p.at, p.cost, p.denied = v.res, v.at, v.cost, time.Time{}
		l.booked++
	}
	for _, v := range l.vacant {
		cancel = append(cancel, v.res)
	}
	l.vacant = nil
	l.undoLocked(cancel)
	l.wakeLocked(now)
	return cancel, err
}

// exchangeLocked exchanges a new booking for the earliest vacant one
// of the same cost. Otherwise the vacant bookings would stay unused.
func (l *line) exchangeLocked(booked vacancy) vacancy {
	for i := len(l.vacant) - 1; i >= 0; i-- { // the place that left last had the earliest booking
		if v := l.vacant[i]; v.cost == booked.cost && v.at.Before(booked.at) {
			l.vacant = slices.Delete(l.vacant, i, i+1)
			slices.Reverse(l.vacant)
			l.vacant = append(l.vacant, booked)
			return v
		}
	}
	slices.Reverse(l.vacant)
	return booked
}

// backLocked ends a place's call to the limiter. It returns the bookings to cancel now.
func (l *line) backLocked() (undone []*ratelimit.Reservation) {
	undone, l.undone = l.undone, nil
	l.booking = nil
	return undone
}

// deniedLocked handles a denial. It returns nil if the limiter must be called again, or an error if the place must give up.
func (p *Place) deniedLocked(res *ratelimit.Reservation, cost int, now time.Time) error {
	var d ratelimit.Decision
	if res != nil {
		d = res.Decision
	}
	full := d.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket && cost > d.Remaining
	if full || d.RetryAfter <= 0 {
		return fmt.Errorf("%s: %w: cost %d is denied under %v", p.line.pkg, ratelimit.ErrLimited, cost, d.Limit)
	}
	if p.denied = now.Add(d.RetryAfter); p.isLate(p.denied) {
		return p.tooLate(p.denied, d.Limit)
	}
	p.at = now.Add(min(d.RetryAfter, peekEach))
	return nil
}

// leave removes the place from the queue if it still waits, and returns its bookings. If the limiter has panicked,
// leave also ends the place's call. If a request's sender has panicked, leave ends the request's flight.
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

// giveUp is like leave, for a place that stops waiting. It reports false if the request has been sent.
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
	rebook := l.handDownLocked(p)
	v := vacancy{at: p.at, cost: p.cost}
	v.res = l.removeLocked(p)
	if l.booking == p { // the limiter has panicked
		bookings = l.backLocked()
		for _, v := range l.vacant {
			bookings = append(bookings, v.res)
		}
		l.vacant = nil
	}
	switch {
	case v.res == nil:
	case l.booking != nil:
		l.vacant = append(l.vacant, v)
	default:
		bookings = append(bookings, v.res)
	}
	bookings = append(bookings, l.takeBackLocked(rebook)...)
	l.undoLocked(bookings)
	l.wakeLocked(time.Now())
	return bookings
}

// removeLocked removes a place from the queue, and returns its booking.
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

// maxRebook is the maximum number of places that book again after a place with another cost has
// left before them. In a longer queue this would take too long, so the places keep their bookings.
const maxRebook = 512

// handDownLocked passes the booking of a leaving place to the next place. The next place's booking goes to the one after
// it, and so on while the costs are equal. The leaving place gets the last of these bookings. handDownLocked returns the
// index of the first place with another cost, after the leaving place is removed. This place must book again to move up.
func (l *line) handDownLocked(p *Place) (rebook int) {
	if p.res == nil {
		return l.booked
	}
	i := l.indexLocked(p) + 1
	for ; i < l.booked; i++ {
		q := l.queue[i]
		if q.cost != p.cost || q.res == nil {
			break
		}
		p.res, q.res = q.res, p.res
		p.at, q.at = q.at, p.at
	}
	if l.booked-i > maxRebook {
		return l.booked - 1
	}
	return i - 1
}

// undoLocked stops all places from booking until the given bookings have been cancelled.
func (l *line) undoLocked(bookings []*ratelimit.Reservation) {
	if len(bookings) > 0 {
		l.undoing++
	}
}

// cancelled ends the effect of one undoLocked, after its bookings have been cancelled.
func (l *line) cancelled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.undoing--
	l.wakeLocked(time.Now())
}

// firstLocked returns the first place without a booking, or nil.
func (l *line) firstLocked() *Place {
	if l.booked == len(l.queue) {
		return nil
	}
	return l.queue[l.booked]
}

// maxSent is the maximum number of places sent during one hold of the lock. The next head sends the others. A
// mutex held for long is handed from one waiting goroutine to the next, and this costs more than their work.
const maxSent = 32

// wakeLocked sends the first places whose time has come. Then it wakes places with a
// possible next step: a new head, to set its timer, and the first place without a booking.
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

// learn obeys the answer to a request. It returns the bookings no longer valid, in their order.
func (l *line) learn(seq uint64, a Advice, now time.Time) []*ratelimit.Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flights.land(seq)
	before := l.opensLocked()
	l.heedLocked(f, seq, a, now)
	if l.opensLocked() != before {
		for _, p := range l.queue {
			p.rouse() // some places may not have enough time
		}
	}
	defer l.wakeLocked(now)
	if !now.Before(l.opensLocked()) && !l.exceededLocked(now, nil) {
		return nil
	}
	return l.unbookLocked(0)
}

// heedLocked updates the back-off and the budgets after the answer to a
// request. f is the request's flight, or zero if the request was not in flight.
func (l *line) heedLocked(f flight, seq uint64, a Advice, now time.Time) {
	sent := l.flights.sent
	if (a.Wait > 0 || a.Refused) && seq > l.backoff.backedAt && l.budgets.plenty(now) {
		l.misled, l.figures = misledFor, false
	}
	if a.Wait > 0 { // the wait replaces budgets, because it is more precise than the budgets' ends
		l.backoff.close(now.Add(a.Wait))
		l.budgets.refused(seq, now.Add(a.Wait), now)
		a.Budgets = nil
	}
	if a.Answered {
		l.backoff.broken = 0
	}
	switch {
	case a.Broken:
		l.backoff.fail(seq, sent, now)
	case a.Wait > 0 || a.Refused:
		if wait, first := l.backoff.refuse(seq, a, sent, l.rate.measured(), now); first && !l.figures {
			l.rate.refuse(wait, now)
		}
		if a.Wait > 0 || exhausted(a.Budgets, now) {
			l.crowd.refuse()
		}
		l.backoff.narrow(sent, now)
	case a.Answered:
		l.backoff.serve(f)
	}
	l.budgets.spend(f, a.Budgets)
	for _, b := range a.Budgets {
		b.seq, b.sent, b.received, b.flying = seq, f.at, now, l.flights.flying()
		l.expireLocked(now)
		if l.budgets.shared(b) {
			l.crowd.meet(b.Limit)
		}
		l.budgets.set(b, f.units)
	}
	if a.Answered && a.Wait == 0 && !a.Refused {
		l.crowd.serve()
		l.misled = max(0, l.misled-1)
		l.figures = l.misled == 0 && slices.ContainsFunc(a.Budgets, Budget.informs)
		l.rate.serve(l.figures, len(a.Budgets) > 0)
	}
}

// reset forgets the server's answers and their effects. Bookings stay.
func (l *line) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backoff.reset(l.flights.sent)
	l.crowd, l.rate = crowd{}, rate{}
	l.budgets.list = nil
	l.wakeLocked(time.Now())
}

// loseLocked ends the flight of a request that will get no answer. It does nothing if the request is not in flight.
func (l *line) loseLocked(seq uint64) {
	if f := l.flights.land(seq); f.seq > 0 {
		l.budgets.spend(f, nil) // the server may have counted it
		l.wakeLocked(time.Now())
	}
}

// unbookLocked takes back the places' bookings from an index on, and stops all
// places from booking until these bookings have been cancelled. See takeBackLocked.
func (l *line) unbookLocked(from int) (bookings []*ratelimit.Reservation) {
	bookings = l.takeBackLocked(from)
	l.undoLocked(bookings)
	return bookings
}

// takeBackLocked takes back the places' bookings from an index on. It returns the bookings to cancel now. While a call
// to the limiter is under way it returns none: the calling place cancels them after its own booking, the last one.
func (l *line) takeBackLocked(from int) (bookings []*ratelimit.Reservation) {
	for _, p := range l.queue[from:l.booked] {
		if p.following != nil {
			l.undoing++ // the place itself gives its booking back
			p.stop()
		} else if p.res != nil {
			bookings = append(bookings, p.res)
		}
		p.res, p.at = nil, time.Time{}
	}
	l.booked = from
	if l.booking != nil {
		l.undone = append(l.undone, bookings...)
		return nil
	}
	return bookings
}
