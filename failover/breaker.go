package failover

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// State is the state of a [Limiter]'s breaker. The zero State is StateClosed.
type State uint8

// The states of a breaker.
const (
	StateClosed   State = iota // the primary decides
	StateHalfOpen              // one decision at a time is a probe
	StateOpen                  // the primary is not called
)

// String returns "closed", "half-open" or "open".
func (s State) String() string {
	switch s {
	case StateClosed:
		return "closed"
	case StateHalfOpen:
		return "half-open"
	}
	return "open"
}

// change is a change of state.
type change struct {
	from, to State
	forced   bool // Force made it
	since    time.Time
}

// health is the evidence of a call about the primary.
type health uint8

const (
	noEvidence health = iota
	success
	failure
)

// partsPerWindow is the number of parts in a window.
const partsPerWindow = 20

// part counts the results of a part of the window.
type part struct {
	number    int64 // the number of the part in time
	successes int
	failures  int
}

// breaker decides whether the primary is called.
//
// Invariant: a result counts only in the state in which its call began. So a call
// that began before an outage and ends after it neither opens nor closes the breaker.
//
// A closed breaker opens at a failure in either of two cases. The window contains at least Failures
// failures, and they are at least half of its results. Or the last Failures results have failed in a
// row, over at least a window. A result counts when it is known. An open breaker becomes half-open after
// openFor, at the next call. Then it lets one call through at a time, and the first call with evidence
// closes it or opens it again. The probe needs no turn, because calls that hang may hold all of them.
type breaker struct {
	failures int
	window   time.Duration
	openFor  time.Duration
	origin   time.Time
	report   func(change)
	renew    func() // called under mu when it closes

	mu      sync.Mutex // guards the fields below
	state   State
	opened  uint64 // the number of openings
	forced  bool
	era     uint64        // the number of changes: results of an earlier era do not count
	since   time.Time     // the time at which it left StateClosed; zero if it is closed
	until   time.Time     // the time at which an open breaker becomes half-open
	probing bool          // it is half-open, and a call is under way
	shut    chan struct{} // closed while the state is not StateClosed
	parts   [partsPerWindow]part
	row     int       // failures since the last success
	began   time.Time // the time at which the first of them was known

	changes   []change // changes that are not announced yet
	reporting bool     // a goroutine is announcing changes
	queued    atomic.Int64
}

func newBreaker(failures int, window, openFor time.Duration, report func(change), renew func()) *breaker {
	return &breaker{
		failures: failures,
		window:   window,
		// Each breaker draws a time within ±20 %, so that a fleet does not probe at the same time.
		openFor: max(1, times(0.8+0.4*rand.Float64(), openFor)),
		origin:  time.Now(),
		report:  report,
		renew:   renew,
		shut:    make(chan struct{}),
	}
}

// times returns n times d, or the longest Duration if that overflows.
func times(n float64, d time.Duration) time.Duration {
	if product := n * float64(d); product < math.MaxInt64 {
		return time.Duration(product)
	}
	return math.MaxInt64
}

// ticket lets one call of the primary through.
type ticket struct {
	era   uint64
	probe bool
}

// admission is the permission to make a call now, or the reason against it.
type admission uint8

const (
	notAdmitted admission = iota // the call must not be made now
	needsTurn                    // the call may be made once it has a turn
	admitted                     // the call may be made now
)

// enter reports whether a caller may call the primary. turn states whether the caller has a turn. A caller that
// is admitted must pass the ticket to done. A caller that needs a turn stops waiting for it once shut is closed.
func (b *breaker) enter(turn bool) (t ticket, a admission, shut <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.lookLocked() {
	case StateClosed:
		if !turn {
			return t, needsTurn, b.shut
		}
		return ticket{era: b.era}, admitted, nil
	case StateHalfOpen:
		if !b.probing {
			b.probing = true
			return ticket{b.era, true}, admitted, nil
		}
	}
	return t, notAdmitted, nil
}

// lookLocked returns the state as of now.
func (b *breaker) lookLocked() State {
	if b.state == StateOpen && !b.forced && !time.Now().Before(b.until) {
		b.becomeLocked(StateHalfOpen)
	}
	return b.state
}

// done records the result of a call.
func (b *breaker) done(t ticket, h health) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.era != b.era {
		return
	}
	if t.probe {
		b.probing = false
	}
	switch {
	case h == noEvidence || b.forced:
	case t.probe && h == success:
		b.becomeLocked(StateClosed)
	case t.probe:
		b.becomeLocked(StateOpen)
	case b.state == StateClosed && b.countLocked(h):
		b.becomeLocked(StateOpen)
	}
}

// settled records the result of a settlement. A settlement is no probe, and its
// success is no evidence, because an engine may have settled without a call.
func (b *breaker) settled(era uint64, h health) {
	if h == failure {
		b.done(ticket{era: era}, h)
	}
}

// countLocked counts a result, and reports whether it opens the breaker.
func (b *breaker) countLocked(h health) bool {
	now := time.Now()
	number := int64(now.Sub(b.origin)) / int64(b.window/partsPerWindow)
	s := &b.parts[number%partsPerWindow]
	if s.number != number {
		*s = part{number: number}
	}
	if h == success {
		s.successes++
		b.row = 0
		return false
	}
	s.failures++
	if b.row++; b.row == 1 {
		b.began = now
	}
	if b.row >= b.failures && now.Sub(b.began) >= b.window {
		return true
	}
	failures, successes := 0, 0
	for _, s := range b.parts {
		if number-s.number < partsPerWindow {
			failures += s.failures
			successes += s.successes
		}
	}
	return failures >= b.failures && failures >= successes
}

// becomeLocked changes the state, and resets the counts.
func (b *breaker) becomeLocked(to State) {
	from := b.state
	b.state = to
	b.era++
	b.probing = false
	b.parts, b.row = [partsPerWindow]part{}, 0
	c := change{from: from, to: to, forced: b.forced, since: b.since}
	if from == StateClosed && to != StateClosed {
		b.since = time.Now()
		close(b.shut)
	}
	if to == StateClosed && from != StateClosed {
		b.since = time.Time{}
		b.shut = make(chan struct{})
		b.renew()
	}
	if to == StateOpen {
		b.until = time.Now().Add(b.openFor)
	}
	if from != to {
		if to == StateOpen {
			b.opened++
		}
		b.changes = append(b.changes, c)
		b.queued.Add(1)
	}
}

// force puts the breaker into StateOpen or StateClosed, until StateHalfOpen lifts that.
func (b *breaker) force(to State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forced = to != StateHalfOpen
	if !b.forced && b.state == StateClosed {
		return
	}
	b.becomeLocked(to)
}

// standing is the breaker's part of Stats.
type standing struct {
	state  State
	forced bool
	since  time.Time
	opened uint64
	era    uint64
}

func (b *breaker) standing() standing {
	b.mu.Lock()
	defer b.mu.Unlock()
	return standing{b.lookLocked(), b.forced, b.since, b.opened, b.era}
}

// announce reports the changes in the queue, while no lock is held. Only one goroutine does so at a time,
// so they are reported in order. The functions that it calls are the user's: a panic there loses no change.
func (b *breaker) announce() {
	for b.queued.Load() > 0 {
		b.mu.Lock()
		if b.reporting || len(b.changes) == 0 {
			b.mu.Unlock()
			return
		}
		c := b.changes[0]
		b.changes = b.changes[1:]
		b.queued.Add(-1)
		b.reporting = true
		b.mu.Unlock()
		b.report(c)
		b.mu.Lock()
		b.reporting = false
		b.mu.Unlock()
	}
}
