// Package tentative keeps a process's tentative bookings in a store.
//
// A waiting caller's booking far ahead is tentative: beside it the store has a record. The record is removed
// once. Either the booking process removes it, shortly before the instant, and then the booking lasts. Or
// another process finds the first one silent, removes the record, and gives the booking back. A caller is
// served only in the first case. So nothing depends on whether a seemingly dead process is dead, nor on clocks.
//
// A process beats while it has such bookings, once for all keys of a limiter. Each beat returns the
// processes that have fallen silent: then the bookings behind theirs may move up. If a booking far ahead
// denies a caller, the caller looks for silent processes, and then at the key's records. So as long as
// no process dies, this costs a few calls a second for each process, whatever the number of keys.
package tentative

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

const (
	Every = 250 * time.Millisecond // the time between two beats, and at least between two looks
	Holds = 3 * Every              // the time after a beat for which a process may be silent

	// Near is the time before its instant from which on a booking is left to its process: it bars nobody for longer than a second after
	// the last beat.
	Near = time.Second - Holds

	// Late is how long after its instant a store keeps the record of an unconfirmed booking.
	Late = time.Minute

	IDSize     = 8
	NumberSize = IDSize + 4

	again     = 4 * Every // the time between two looks at a key's records, while the same processes are silent
	maxLooked = 1024
	maxCalls  = 16 // bookings that follow a beat at the same time
)

// Store has the beats of all of a limiter's processes.
type Store interface {
	// Beat shows that a process is alive, and how long it is until the instant
	// of its last booking. It returns the silent processes, as Silent does.
	Beat(process string, left time.Duration) (silent []string, err error)

	// Silent returns the processes whose last beat is longer ago than Holds. It leaves out those whose bookings can have no record any more.
	Silent() ([]string, error)

	// End forgets a process, which has no bookings.
	End(process string) error
}

// Process is what a process knows of one limiter's tentative bookings. Make one with [New].
type Process struct {
	ID    string // IDSize random bytes
	store Store
	turn  chan struct{} // has an element while the process beats or ends, so that the store gets these calls in their order

	mu       sync.Mutex // guards the fields below
	made     uint32
	open     map[*Booking]struct{}
	end      chan struct{}   // ends the goroutine that beats; nil if there is none
	known    time.Time       // the begin of the last beat that has reached the store; zero if it has none of the process
	shown    bool            // the store may have a beat of the process
	beaten   []string        // the processes that the last beat has found silent
	silent   []string        // those that the last look has found silent
	silentAt int64           // that look's reading; 0 if there was none
	looked   map[string]bool // keys whose records were looked at
	lookedAt int64           // the reading since which they were
}

// New returns a limiter's process.
func New(store Store) *Process {
	id := make([]byte, IDSize)
	_, _ = rand.Read(id) // it never fails
	return &Process{ID: string(id), store: store, turn: make(chan struct{}, 1), open: make(map[*Booking]struct{}), looked: make(map[string]bool)}
}

// Record is how a store removes a booking's record. Exactly one of all calls that remove it succeeds.
type Record struct {
	Confirm func() (bool, error) // removes it, and reports whether it was there
	Cancel  func() error         // gives the booking back if the record is there
	Advance func()               // has the booking move up if a silent process had booked before it; nil if no other had
}

// Booking is a tentative booking of this process. Its methods are safe for concurrent use.
type Booking struct {
	Number string // NumberSize bytes; they begin with the process's ID, and no other record has them

	// The lock of its process guards these fields.
	of      *Process
	due     time.Time // as expected, until it is made
	isMade  bool
	advance func()
	find    func() error
	finding bool

	record Record        // set once
	calls  chan struct{} // has an element while a call is under way, which guards the fields below
	over   bool          // it was confirmed, or given back
	lasts  bool
}

// Begin has the process beat, before it makes a booking whose instant is expected after a time. Then Made, Lost or Drop is called. With an
// error, and if the context ends first, there is no booking.
func (p *Process) Begin(ctx context.Context, left time.Duration) (*Booking, error) {
	b := &Booking{of: p, due: time.Now().Add(left), calls: make(chan struct{}, 1)}
	p.mu.Lock()
	p.made++
	b.Number = string(binary.BigEndian.AppendUint32([]byte(p.ID), p.made))
	p.open[b] = struct{}{}
	if p.end == nil {
		p.end = make(chan struct{})
		go p.run(p.end)
	}
	known := p.knownLocked()
	p.mu.Unlock()
	if known {
		return b, nil
	}
	done := make(chan error, 1)
	go func() { done <- p.beat(false) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		p.drop(b)
		return nil, err
	}
	return b, nil
}

// Used reports whether the process has begun a booking.
func (p *Process) Used() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made > 0
}

// Made records that the booking was made, with its record. The process beats until it is confirmed or due.
func (b *Booking) Made(due time.Time, r Record) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.due, b.isMade, b.record, b.advance = due, true, r, r.Advance
}

// Lost records that it is unknown whether the booking was made. The function find gives it back if it finds its record. It is called
// after each beat until it succeeds. The process beats until then, or until the booking would be due.
func (b *Booking) Lost(find func() error) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.isMade, b.find = true, find
}

// Drop records that there is no booking.
func (b *Booking) Drop() { b.of.drop(b) }

// Confirm makes the booking a lasting one. It reports false if the booking was given back.
func (b *Booking) Confirm() (bool, error) {
	b.calls <- struct{}{}
	defer func() { <-b.calls }()
	return b.confirmHeld()
}

func (b *Booking) confirmHeld() (bool, error) {
	if b.over {
		return b.lasts, nil
	}
	lasts, err := b.record.Confirm()
	if err == nil {
		b.over, b.lasts = true, lasts
		b.of.drop(b)
	}
	return lasts, err
}

// Settle settles the booking by a function, unless it was given back. If the booking does not
// last yet, and costs nothing, it is canceled. If this fails, it is repeated: see [Booking.Lost].
func (b *Booking) Settle(actual int, settle func(actual int) error) error {
	b.calls <- struct{}{}
	defer func() { <-b.calls }()
	if actual == 0 && !b.over {
		return b.cancelHeld()
	}
	if lasts, err := b.confirmHeld(); err != nil || !lasts {
		return err
	}
	return settle(actual)
}

func (b *Booking) cancel() error {
	b.calls <- struct{}{}
	defer func() { <-b.calls }()
	if b.over {
		return nil
	}
	return b.cancelHeld()
}

func (b *Booking) cancelHeld() error {
	err := b.record.Cancel()
	if err != nil {
		b.Lost(b.cancel)
		return err
	}
	b.over = true
	b.of.drop(b)
	return nil
}

// run beats while there are bookings.
func (p *Process) run(end <-chan struct{}) {
	beats := time.NewTicker(Every)
	defer beats.Stop()
	for {
		select {
		case now := <-beats.C:
			p.expire(now)
		case <-end:
		}
		select {
		case <-end:
			p.over()
			return
		default:
		}
		_ = p.beat(true)
	}
}

// beat shows that the process is alive, if it is to be shown again, or is not known. Then bookings follow what others do.
func (p *Process) beat(again bool) error {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.mu.Lock()
	left, beats := p.leftLocked(), len(p.open) > 0 && (again || !p.knownLocked())
	p.shown = p.shown || beats
	p.mu.Unlock()
	if !beats {
		return nil
	}
	begin := time.Now()
	silent, err := p.store.Beat(p.ID, left)
	if err == nil {
		go together(p.follow(begin, silent))
	}
	return err
}

// together makes calls, several at the same time. Beats go on meanwhile.
func together(calls []func()) {
	turns := make(chan struct{}, maxCalls)
	for _, call := range calls {
		turns <- struct{}{}
		go func() {
			defer func() { <-turns }()
			call()
		}()
	}
}

// over has the store forget the process, unless it has made other
// bookings. Otherwise others would look at their keys' records in vain.
func (p *Process) over() {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.mu.Lock()
	ends := len(p.open) == 0 && p.shown
	if ends {
		p.known, p.shown = time.Time{}, false
	}
	p.mu.Unlock()
	if ends {
		_ = p.store.End(p.ID)
	}
}

// knownLocked reports whether the store has a beat of the process that holds until the next one.
func (p *Process) knownLocked() bool { return !p.known.IsZero() && time.Since(p.known) < 2*Every }

// expire drops the bookings whose instants have come.
func (p *Process) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for b := range p.open {
		if b.isMade && !b.due.After(now) {
			p.dropLocked(b)
		}
	}
}

// leftLocked returns the time until the last booking is due.
func (p *Process) leftLocked() (left time.Duration) {
	for b := range p.open {
		left = max(left, time.Until(b.due))
	}
	return left
}

// follow records a beat. It returns the calls to make after it. They are for bookings that may be behind
// newly silent processes' bookings, and for bookings of which it is unknown whether they were made.
func (p *Process) follow(begin time.Time, silent []string) (calls []func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = begin
	last := p.beaten
	p.beaten = silent
	fallen := gains(silent, last, p.ID)
	for b := range p.open {
		if b.advance != nil && fallen {
			calls = append(calls, b.advance)
		}
		if b.find != nil && !b.finding {
			b.finding = true
			calls = append(calls, b.found)
		}
	}
	return calls
}

// gains reports whether there is an ID in now that is neither in before nor the one of this process.
func gains(now, before []string, own string) bool {
	return slices.ContainsFunc(now, func(id string) bool { return id != own && !slices.Contains(before, id) })
}

// found looks whether the booking was made.
func (b *Booking) found() {
	err := b.find()
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.finding = false; err == nil {
		b.of.dropLocked(b)
	}
}

// Beaten returns the processes that the last beat has found silent.
func (p *Process) Beaten() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beaten
}

func (p *Process) drop(b *Booking) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked(b)
}

func (p *Process) dropLocked(b *Booking) {
	delete(p.open, b)
	if len(p.open) == 0 && p.end != nil {
		close(p.end)
		p.end = nil
	}
}

// Look returns the processes silent at a reading of a clock, in µs, for a look at a
// key's records. It returns none if there was such a look lately, since the last of them
// has fallen silent. If the look fails, [Process.Unlook] makes the next call repeat it.
func (p *Process) Look(key string, reading int64) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if since := reading - p.silentAt; p.silentAt == 0 || since < 0 || since >= Every.Microseconds() {
		p.silentAt = reading
		p.mu.Unlock()
		silent, err := p.store.Silent()
		p.mu.Lock()
		if err != nil {
			silent = nil
		}
		if since := reading - p.lookedAt; since < 0 || since >= again.Microseconds() || gains(silent, p.silent, p.ID) || len(p.looked) == maxLooked {
			clear(p.looked)
			p.lookedAt = reading
		}
		p.silent = silent
	}
	if p.looked[key] || len(p.silent) == 0 {
		return nil
	}
	if len(p.looked) < maxLooked { // others are looked at each time
		p.looked[key] = true
	}
	return p.silent
}

// Unlook records that the records of a key could not be looked at.
func (p *Process) Unlook(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.looked, key)
}

// Chunks parts a text into pieces of one size.
func Chunks(text string, size int) (all []string) {
	for piece := range slices.Chunk([]byte(text), size) {
		all = append(all, string(piece))
	}
	return all
}
