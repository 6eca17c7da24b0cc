// Package tentative keeps a process's tentative bookings in a store.
//
// A waiting caller's booking far ahead is tentative: the store has a record beside it. The record is removed
// once. Either the booking process removes it, shortly before the instant, and then the booking lasts. Or
// another process finds the first one silent, removes the record, and gives the booking back. A caller is
// served only in the first case. So nothing depends on whether a seemingly dead process is dead, nor on clocks.
//
// While a process has such bookings, it sends beats to the store, once for all keys of a limiter. Each beat
// returns the silent processes. If more have fallen silent, the bookings behind theirs may move up. If a
// booking far ahead denies a caller, the caller looks for silent processes, and then at the key's records.
// So as long as no process dies, each process sends a few calls a second, whatever the number of keys.
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
	Every = 250 * time.Millisecond // the time between two beats, and the minimum time between two looks
	Holds = 3 * Every              // how long after a beat a process may be silent

	// Near is the time before a booking's instant in which no other process gives the booking back. So a dead
	// process's booking blocks others for at most a second after the last beat: for Holds, and then for Near.
	Near = time.Second - Holds

	// Late is how long after its instant an unconfirmed booking's record stays in the store.
	Late = time.Minute

	IDSize     = 8
	NumberSize = IDSize + 4

	again     = 4 * Every // the time between two looks at a key's records while the same processes are silent
	maxLooked = 1024
	maxCalls  = 16 // how many calls are made at a time after a beat
)

// Store keeps the beats of a limiter's processes.
type Store interface {
	// Beat records that a process is alive, and the time until its last
	// booking's instant. It returns the silent processes, as Silent does.
	Beat(process string, left time.Duration) (silent []string, err error)

	// Silent returns the processes whose last beat was longer ago than Holds.
	// It leaves out a process once none of its bookings can have a record.
	Silent() ([]string, error)

	// End forgets a process without bookings.
	End(process string) error
}

// Process keeps a process's tentative bookings for one limiter. Make one with [New].
type Process struct {
	ID    string // IDSize random bytes
	store Store
	turn  chan struct{} // has an element while the process sends a beat or ends, so that the store receives these calls in their order

	mu       sync.Mutex // guards the fields below
	made     uint32
	open     map[*Booking]struct{}
	end      chan struct{}   // ends the goroutine for the beats; nil if there is none
	known    time.Time       // when the last beat received by the store began; zero if the store has none
	shown    bool            // the store may have a beat from the process
	beaten   []string        // the silent processes found by the last beat
	silent   []string        // the silent processes found by the last look
	silentAt int64           // the last look's reading; 0 if there was none
	looked   map[string]bool // the keys with records looked at since lookedAt
	lookedAt int64           // a reading
}

// New returns a Process for one limiter.
func New(store Store) *Process {
	id := make([]byte, IDSize)
	_, _ = rand.Read(id) // it never fails
	return &Process{ID: string(id), store: store, turn: make(chan struct{}, 1), open: make(map[*Booking]struct{}), looked: make(map[string]bool)}
}

// Record holds the functions to remove a booking's record from the store. Exactly one of all calls to remove it succeeds.
type Record struct {
	Confirm func() (bool, error) // removes the record, and reports whether it was there
	Cancel  func() error         // gives the booking back if the record is there
	Advance func()               // moves the booking up if a silent process had booked before it; nil if no other process had
}

// Booking is one of this process's tentative bookings. Its methods are safe for concurrent use.
type Booking struct {
	Number string // NumberSize bytes, beginning with the process's ID; unique among all records

	// The process's lock guards these fields.
	of      *Process
	due     time.Time // as expected, until it is made
	isMade  bool
	advance func()
	find    func() error
	finding bool

	record Record        // set once
	calls  chan struct{} // has an element while a call is under way; the call guards the fields below
	over   bool          // the booking was confirmed, or given back
	lasts  bool
}

// Begin has the process send a beat, if necessary, before a booking is made. left is the
// expected time until the booking's instant. Its caller then calls Made, Lost or Drop. If
// Begin returns an error, for example because the context has ended, there is no booking.
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

// Made records that the booking was made, with its record. The process sends beats until the booking is confirmed or due.
func (b *Booking) Made(due time.Time, r Record) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.due, b.isMade, b.record, b.advance = due, true, r, r.Advance
}

// Lost records that the booking may or may not have been made. find looks for its
// record, and gives the booking back if it finds one. The process calls find after each
// beat until it succeeds. It sends beats until then, or until the booking would be due.
func (b *Booking) Lost(find func() error) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.isMade, b.find = true, find
}

// Drop records that the booking was not made.
func (b *Booking) Drop() { b.of.drop(b) }

// Confirm makes the booking lasting. It reports false if the booking was given back.
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

// Settle confirms the booking and calls settle with the actual cost, unless the booking
// was given back. If the actual cost is 0 and the booking is still tentative, Settle
// cancels it instead. If this fails, the process tries again: see [Booking.Lost].
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

// run sends beats while there are bookings.
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

// beat sends a beat if there are bookings. If again is false, it sends one only if the
// store's beat is missing or old. After the beat it makes the calls returned by follow.
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

// together makes calls, up to maxCalls at a time. Beats need not wait for them.
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

// over has the store forget the process, unless it has begun new bookings. Otherwise
// other processes would find it silent, and look for records that do not exist.
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

// knownLocked reports whether the process's last beat is recent enough to hold until the next one.
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

// follow records a beat, and returns the calls to make after it: for bookings that may be
// behind newly silent processes' bookings, and for bookings that may or may not have been made.
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

// gains reports whether now has an ID that is neither in before nor the process's own.
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

// Beaten returns the silent processes found by the last beat.
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

// Look returns the silent processes for a caller that is about to look at a key's records. reading is a
// clock's, in µs. Look returns none if the key's records were looked at a short time ago, and no other process
// has fallen silent since. If the look at the records fails, [Process.Unlook] makes the next call repeat it.
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
	if len(p.looked) < maxLooked { // further keys are looked at each time
		p.looked[key] = true
	}
	return p.silent
}

// Unlook records that a look at a key's records has failed.
func (p *Process) Unlook(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.looked, key)
}

// Chunks cuts a text into pieces of one size.
func Chunks(text string, size int) (all []string) {
	for piece := range slices.Chunk([]byte(text), size) {
		all = append(all, string(piece))
	}
	return all
}
