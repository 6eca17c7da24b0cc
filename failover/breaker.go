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

// A breaker's states.
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
	forced   bool // whether Force made it
	since    time.Time
}

// health is what a call shows about the primary.
type health uint8

const (
	noEvidence health = iota
	success
	failure
)

// partsPerWindow is the number of parts in a window.
const partsPerWindow = 20

// part counts the results in one part of the window.
type part struct {
	number    int64 // the number of the part since the origin
	successes int
	failures  int
}

// breaker decides whether to call the primary.
//
// Invariant: a result counts only in the state in which its call began.
// So a call that spans an outage neither opens nor closes the breaker.
//
// A failure opens a closed breaker in two cases. In the first, the window contains at least Failures
// failures, and they are at least half its results. In the second, the last Failures results have all failed,
// over at least a window. A result counts from the moment it is known. An open breaker becomes half-open at
// the first call after openFor. Then it admits one call at a time. The first call with a result about the
// primary closes or opens the breaker. A probe needs no turn, because hung calls may hold all turns.
type breaker struct {
	failures int
	window   time.Duration
	openFor  time.Duration
	origin   time.Time
	report   func(change)
	renew    func() // called under mu when the breaker closes

	mu        sync.Mutex // guards the fields below
	state     State
	opened    uint64 // openings
	forced    bool
	era       uint64        // changes; results of an earlier era do not count
	since     time.Time     // when the breaker left StateClosed; zero while it is closed
	until     time.Time     // when an open breaker becomes half-open
	probing   bool          // whether the breaker is half-open and a call is under way
	shut      chan struct{} // closed while the state is not StateClosed
	parts     [partsPerWindow]part
	row       int       // failures since the last success
	began     time.Time // the time of the first
	succeeded time.Time // the time of the last success

	changes   []change // unreported changes
	reporting bool     // whether a goroutine is reporting changes
	queued    atomic.Int64
}

func newBreaker(failures int, window, openFor time.Duration, report func(change), renew func()) *breaker {
	return &breaker{
		failures: failures,
		window:   window,
		// Each breaker draws its own time within ±20 %, so a fleet's processes do not probe all at once.
		openFor: max(1, times(0.8+0.4*rand.Float64(), openFor)),
		origin:  time.Now(),
		report:  report,
		renew:   renew,
		shut:    make(chan struct{}),
	}
}

// times returns n times d, or the longest Duration if the product overflows.
func times(n float64, d time.Duration) time.Duration {
	if product := n * float64(d); product < math.MaxInt64 {
		return time.Duration(product)
	}
	return math.MaxInt64
}

// ticket permits one call to the primary.
type ticket struct {
	era   uint64
	probe bool
}

// admission states whether a call may be made now.
type admission uint8

const (
	notAdmitted admission = iota // the call must not be made now
	needsTurn                    // the call may be made once it has a turn
	admitted                     // the call may be made now
)

// enter reports whether a caller may call the primary. turn states whether the caller has a turn. An admitted
// caller must pass the ticket to done. A caller that needs a turn stops waiting for it once shut is closed.
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

// done records a call's result.
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
		b.succeeded = time.Now()
		b.becomeLocked(StateClosed)
	case t.probe:
		b.becomeLocked(StateOpen)
	case b.state == StateClosed && b.countLocked(h):
		b.becomeLocked(StateOpen)
	}
}

// decides reports whether the primary decides, and has answered within d; without a
// positive d, whether it decides. If not, tries reports whether a call may be made to it.
func (b *breaker) decides(d time.Duration) (decides, tries bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.lookLocked()
	return state == StateClosed && (d <= 0 || time.Since(b.succeeded) <= d), state != StateOpen
}

// settled records a settlement's result. A settlement is not a probe. Its
// success proves nothing, because an engine may have settled without a call.
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
		b.row, b.succeeded = 0, now
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

// force puts the breaker into StateOpen or StateClosed, until StateHalfOpen lifts it.
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

// announce reports the queued changes, while no lock is held. Only one goroutine does so at a time,
// so changes are reported in order. It calls the user's functions. If one panics, no change is lost.
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
