package turns

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	leastGain = time.Millisecond      // no booking moves for a smaller gain, and only the first moves for less than a quarter of its wait
	lingering = 50 * time.Millisecond // the maximum time for which a leaving caller waits until its booking has been moved
	maxVain   = 2                     // a look ends after this number of calls without room
)

// Bookings are one process's reservations while they wait for instants booked in a store. A booking keeps
// its instant until the store has earlier room for it. Then the store replaces the booking in one
// decision, so no reservation loses its place. Reservations of the same cost are served in the order of
// their instants. When a caller leaves, its instant passes to the reservations behind it, without a call.
//
// Bookings look for room when this process changes the limit or the budget, and once a second, because
// other processes may have changed them. A look without success costs one or two calls for each key.
// If an answer has another [Answer.Life], the store has forgotten the key's earlier bookings: then all
// are booked again, in the order of their instants. The zero Bookings is ready to use.
type Bookings[K comparable] struct {
	mu    sync.Mutex
	lists map[K]*list[K]
	made  uint64 // how many answers have booked
}

// list holds one key's bookings with waiting callers. The lock of its Bookings guards it.
type list[K comparable] struct {
	key     K
	waiting []*Booking[K] // in the order of their instants
	moving  bool          // a goroutine looks for room
	again   bool          // the goroutine must look once more
	looked  time.Time     // when the last look began
	timer   *time.Timer   // starts the next look; nil if none is planned
}

// Booking is one reservation's booking. Its methods are safe for concurrent use.
type Booking[K comparable] struct {
	of    *Bookings[K]
	key   K
	cost  int
	made  time.Time
	book  func(ahead time.Duration, instead any) (Answer[K], error)
	check func() error

	// Guarded by its Bookings' lock:
	held    held
	list    *list[K] // nil while nobody waits for it
	waits   int      // calls that wait for it
	settled bool
	err     error         // the error that ends its wait
	panics  any           // the value with which a call to the limiter has panicked
	changed chan struct{} // closed when a field above has changed
	moved   chan struct{} // closed when the call to move it has ended; nil if there is none
}

// held is a booking's state in the store.
type held struct {
	due    time.Time
	settle func(actual int) error // may be nil
	ref    any                    // identifies the booking in the store
	life   uint64                 // the key's life
	number uint64                 // the answer's number
	void   bool                   // the store has forgotten it
	unsure bool                   // the store may have replaced it
}

// Add returns the booking for the store's answer. While a caller waits, other goroutines call book to move the
// booking: book books the cost anew, at most ahead from now, in place of the booking whose [Answer.Ref] is instead.
// They also call check, which returns an error if the limit can never allow the cost now. That error ends the wait.
func (bs *Bookings[K]) Add(key K, cost int, a Answer[K], book func(ahead time.Duration, instead any) (Answer[K], error), check func() error) *Booking[K] {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	now := time.Now()
	return &Booking[K]{of: bs, key: key, cost: cost, made: now, book: book, check: check, held: bs.heldLocked(a, now), changed: make(chan struct{})}
}

func (bs *Bookings[K]) heldLocked(a Answer[K], now time.Time) held {
	bs.made++
	return held{due: now.Add(a.Delay), settle: a.Settle, ref: a.Ref, life: a.Life, number: bs.made}
}

// Wait sleeps until the booking's instant, which may become earlier, and returns nil. If the
// booking is settled, it returns nil at once. If the context ends first, Wait returns the context's
// error; if check fails, it returns check's error. The booking then stays: its caller settles it.
func (b *Booking[K]) Wait(ctx context.Context) error {
	bs := b.of
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b.waits++; b.waits == 1 {
		bs.joinLocked(b)
	}
	defer func() {
		if b.waits--; b.waits == 0 {
			bs.leaveLocked(b)
		}
	}()
	for {
		now := time.Now()
		switch {
		case b.settled || !now.Before(b.held.due):
			return nil
		case b.panics != nil:
			panic(b.panics)
		case b.err != nil:
			return b.err
		case ctx.Err() != nil:
			bs.leaveLocked(b) // from here on the booking is not moved
			b.lingerLocked()
			return ctx.Err()
		}
		changed, timer := b.changed, time.NewTimer(b.held.due.Sub(now))
		bs.mu.Unlock()
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
		bs.mu.Lock()
	}
}

// lingerLocked waits for a short while until the call to move the booking has ended, and the booking has been given back.
func (b *Booking[K]) lingerLocked() {
	if b.moved != nil {
		timer := time.NewTimer(lingering)
		defer timer.Stop()
		b.movedLocked(timer.C)
	}
}

// movedLocked waits until the call to move the booking has ended, or until end receives.
func (b *Booking[K]) movedLocked(end <-chan time.Time) {
	moved := b.moved
	b.of.mu.Unlock()
	defer b.of.mu.Lock()
	select {
	case <-moved:
	case <-end:
	}
}

// Settle replaces the booked cost by the actual cost. Call it once. If the actual
// cost is 0 before the instant, the instant passes to the bookings behind it.
func (b *Booking[K]) Settle(actual int) error {
	bs := b.of
	bs.mu.Lock()
	bs.leaveLocked(b)
	b.settled = true
	b.rouse()
	for b.moved != nil {
		b.movedLocked(nil)
	}
	h, room := b.held, actual < b.cost
	if l := bs.lists[b.key]; l != nil && actual == 0 && h.due.After(time.Now()) {
		h, room = l.pass(h, b.cost)
	}
	bs.mu.Unlock()
	if h.settle == nil || h.unsure && actual < b.cost {
		return nil // the booking is gone, and a refund would give back another one's units
	}
	err := h.settle(actual)
	if room {
		bs.Moved(b.key)
	}
	return err
}

// Moved makes a key's bookings look for room, because its budget may have grown.
func (bs *Bookings[K]) Moved(key K) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.lookLocked(bs.lists[key])
}

// Waiting reports whether this process's callers wait for a key's bookings.
func (bs *Bookings[K]) Waiting(key K) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	l := bs.lists[key]
	return l != nil && len(l.waiting) > 0
}

// Made counts the answers that have booked.
func (bs *Bookings[K]) Made() uint64 {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.made
}

// Found makes a key's bookings look for room if a call has returned another life for the key. made is the result of
// [Bookings.Made] at the call's beginning. Later bookings are not compared, because they may belong to that life.
func (bs *Bookings[K]) Found(key K, life, made uint64) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if l := bs.lists[key]; l != nil && l.forget(made, life) {
		bs.lookLocked(l)
	}
}

// Changed makes all keys' bookings look for room, because the limit has changed.
func (bs *Bookings[K]) Changed() {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for _, l := range bs.lists {
		bs.lookLocked(l)
	}
}

// joinLocked adds a booking to its key's list. From then on it may move.
func (bs *Bookings[K]) joinLocked(b *Booking[K]) {
	now := time.Now()
	if b.settled || b.err != nil || !now.Before(b.held.due) {
		return
	}
	l := bs.lists[b.key]
	if l == nil {
		if l = (&list[K]{key: b.key, looked: b.made}); bs.lists == nil {
			bs.lists = map[K]*list[K]{}
		}
		bs.lists[b.key] = l
	}
	b.list, l.waiting = l, append(l.waiting, b)
	l.sort()
	bs.planLocked(l, now)
}

// leaveLocked removes a booking from its list. From then on it keeps its instant.
func (bs *Bookings[K]) leaveLocked(b *Booking[K]) {
	l := b.list
	if l == nil {
		return
	}
	b.list = nil
	l.waiting = slices.DeleteFunc(l.waiting, func(x *Booking[K]) bool { return x == b })
	bs.dropLocked(l)
}

func (bs *Bookings[K]) dropLocked(l *list[K]) {
	if len(l.waiting) > 0 || l.moving || bs.lists[l.key] != l {
		return
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	delete(bs.lists, l.key)
}

// planLocked plans the next look if a booking is far ahead, because other processes may make room until then.
func (bs *Bookings[K]) planLocked(l *list[K], now time.Time) {
	next := l.looked.Add(Horizon)
	if l.timer != nil || l.moving || len(l.waiting) == 0 || !l.waiting[len(l.waiting)-1].held.due.After(later(next, now)) {
		return
	}
	l.timer = time.AfterFunc(next.Sub(now), func() {
		bs.mu.Lock()
		defer bs.mu.Unlock()
		l.timer = nil
		bs.lookLocked(l)
	})
}

// lookLocked starts a goroutine to look for room, or makes the running one look again.
func (bs *Bookings[K]) lookLocked(l *list[K]) {
	if l == nil || len(l.waiting) == 0 {
		return
	}
	if l.again = true; !l.moving {
		l.moving = true
		go bs.look(l)
	}
}

// look moves bookings to earlier instants until there is no room.
func (bs *Bookings[K]) look(l *list[K]) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for l.again {
		l.again, l.looked = false, time.Now()
		if l.timer != nil {
			l.timer.Stop()
			l.timer = nil
		}
		bs.checkLocked(l)
		bs.moveLocked(l)
	}
	l.moving = false
	bs.planLocked(l, time.Now())
	bs.dropLocked(l)
}

// checkLocked ends the waits for costs that the limit can never allow now.
func (bs *Bookings[K]) checkLocked(l *list[K]) {
	errs := map[int]error{}
	for _, b := range slices.Clone(l.waiting) {
		err, known := errs[b.cost]
		if !known {
			bs.unlocked(b, func() { err = b.check() })
			errs[b.cost] = err
		}
		if err != nil && b.list == l {
			b.err = err
			bs.leaveLocked(b)
			b.rouse()
		}
	}
}

// unlocked calls the limiter without the lock. If the limiter panics, so do the callers waiting for the booking.
func (bs *Bookings[K]) unlocked(b *Booking[K], f func()) {
	bs.mu.Unlock()
	defer func() {
		value := recover()
		bs.mu.Lock()
		if value != nil {
			b.panics = value
			bs.leaveLocked(b)
			b.rouse()
		}
	}()
	f()
}

// moveLocked moves bookings until the store has no room.
func (bs *Bookings[K]) moveLocked(l *list[K]) {
	var from time.Time // before this instant no answer has found room
	for vain := 0; vain < maxVain; {
		now := time.Now()
		b, ahead := l.next(now, from)
		if b == nil {
			return
		}
		made, old := bs.made, b.held
		b.moved = make(chan struct{})
		var answer Answer[K]
		var err error
		panics := true
		bs.unlocked(b, func() {
			answer, err = b.book(ahead, old.ref)
			panics = false
		})
		l.forget(made, answer.Life)
		switch {
		case panics:
		case err != nil:
			b.held.unsure, vain = b.held.unsure || answer.Unsure, maxVain
		case !answer.Allowed && old.void: // the store has no place for more bookings
			vain = maxVain
		case !answer.Allowed:
			from = now.Add(ahead).Add(min(answer.Retry, math.MaxInt64/4))
			vain++
		default:
			h := bs.heldLocked(answer, time.Now())
			if vain = 0; !old.void {
				from = later(from, h.due)
			}
			l.replace(b, h)
			if h.settle == nil && old.settle != nil { // the limit is gone: the store was not called, and still has the old booking
				go func() { _ = old.settle(0) }()
			}
		}
		close(b.moved)
		b.moved = nil
	}
}

// next returns the first booking that may move, and how far ahead it may be booked again. The new instant must be after from.
func (l *list[K]) next(now, from time.Time) (b *Booking[K], ahead time.Duration) {
	for _, b := range l.waiting {
		if b.held.void {
			return b, math.MaxInt64
		}
	}
	first := true
	for _, b := range l.waiting {
		wait := b.held.due.Sub(now)
		gain := leastGain
		if !first {
			gain = max(gain, wait/4)
		}
		if b.held.unsure || wait <= gain {
			continue
		}
		if ahead = wait - gain; now.Add(ahead).After(from) {
			return b, ahead
		}
		first = false
	}
	return nil, 0
}

// forget marks the bookings from other lives of the key as void. It leaves out answers with
// numbers above made, because they may belong to the new life. It reports whether it marked any.
func (l *list[K]) forget(made, life uint64) (any bool) {
	for _, b := range l.waiting {
		if h := &b.held; life != 0 && h.life != 0 && h.life != life && h.number <= made && !h.void {
			h.void, h.unsure, h.settle, any = true, false, nil, true
		}
	}
	return any
}

// replace records a booking's new instant. If the bookings just before it have the same cost and are due
// after the new instant, the first gets the new instant, its old one passes to the next booking, and so on.
func (l *list[K]) replace(b *Booking[K], h held) {
	if !b.held.void && b.held.due.Before(h.due) {
		h.due = b.held.due // this process received the answer late, but the store has booked no later instant
	}
	i := slices.Index(l.waiting, b)
	first := i // -1 if the booking was served, or its caller has left
	for !b.held.void && first > 0 {
		if x := l.waiting[first-1]; x.cost != b.cost || !x.held.due.After(h.due) || x.held.void {
			break
		}
		first--
	}
	for ; first < i; first++ {
		x := l.waiting[first]
		h, x.held = x.held, h
		x.rouse()
	}
	b.held = h
	b.rouse()
	l.sort()
}

// pass gives an instant to the first booking with a later one, that booking's instant to the
// next, and so on. It stops at a booking with another cost, and at one being moved. It returns
// the remaining instant, and whether giving it back to the store may make room for others.
func (l *list[K]) pass(h held, cost int) (rest held, room bool) {
	for _, b := range l.waiting {
		switch {
		case !b.held.due.After(h.due):
			continue
		case b.held.unsure:
			continue
		case b.cost != cost || h.void || h.unsure || b.held.void || b.moved != nil: // a booking being moved is not overtaken
			return h, true
		}
		h, b.held = b.held, h
		b.rouse()
	}
	l.sort()
	return h, false
}

func (l *list[K]) sort() {
	slices.SortStableFunc(l.waiting, func(a, b *Booking[K]) int { return a.held.due.Compare(b.held.due) })
}

// rouse wakes a booking's waiting callers.
func (b *Booking[K]) rouse() {
	close(b.changed)
	b.changed = make(chan struct{})
}
