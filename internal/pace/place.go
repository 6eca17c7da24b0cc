package pace

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// Place is one request's place in its key's queue.
type Place struct {
	line     *line
	ctx      context.Context
	deadline time.Time     // the last instant when the request may be sent; zero if there is none
	units    int64         // the request's units in budgets that count units
	wake     chan struct{} // has a buffer of one
	repeated bool          // whether it was sent before; used, like flies, only by its own goroutine
	flies    bool          // whether it was sent, with neither Leave nor Again since

	// sent is set when the place leaves the queue to be sent. After that, only its own goroutine uses the next two fields.
	sent  atomic.Bool
	spent *ratelimit.Reservation // the sent request's booking
	seq   uint64                 // the number of the request

	landed atomic.Bool // whether it was sent and is answered

	// Guarded by line.mu.
	ticket  uint64
	res     *ratelimit.Reservation // the booking, or nil
	at      time.Time              // when it may be sent or, without a booking, call the limiter again
	cost    int                    // the booking's cost
	denied  time.Time              // when the limiter's denial ends
	waiting bool                   // whether it is in the queue
	slotted bool                   // whether it was sent and holds a slot

	following context.Context // the context of the wait with the booking, or nil
	stop      func()          // ends that wait
}

// left returns how much longer the request may wait.
func (p *Place) left(now time.Time) time.Duration {
	if p.deadline.IsZero() {
		return math.MaxInt64
	}
	return p.deadline.Sub(now)
}

// deniedFor returns how long the limiter's last denial still holds.
func (p *Place) deniedFor(now time.Time) time.Duration {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	return p.denied.Sub(now)
}

// isLate reports whether an instant is past the deadline.
func (p *Place) isLate(at time.Time) bool { return !p.deadline.IsZero() && at.After(p.deadline) }

// Late reports whether the server demands a wait until after the deadline.
func (p *Place) Late() bool {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	return p.isLate(p.line.opensLocked())
}

// Opens returns when the wait demanded by the server ends.
func (p *Place) Opens() time.Time {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	return p.line.opensLocked()
}

// tooLate returns the error for a request that cannot be sent before its deadline. limit
// is the client's own limit, or the zero Limit if the server's limit is the reason.
func (p *Place) tooLate(until time.Time, limit ratelimit.Limit) error {
	now := time.Now()
	reason := ratelimit.ErrLimited
	if d, ok := p.ctx.Deadline(); ok && !p.deadline.Before(d) {
		reason = context.DeadlineExceeded
	}
	return &ratelimit.LateError{Package: p.line.pkg, Limit: limit, After: max(0, until.Sub(now)), Reason: reason}
}

// late returns the error for a request whose wait for the server or for a slot exceeds its deadline.
func (p *Place) late(until time.Time) error {
	err := p.tooLate(until, ratelimit.Limit{})
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	if l := p.line; !l.hasSlotLocked() && !until.After(time.Now()) {
		return fmt.Errorf("%w: MaxInFlight is %d, and so many are in flight", err, l.slots)
	}
	return err
}

// releaseSlot gives back a sent request's slot.
func (p *Place) releaseSlot() {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	if p.releaseSlotLocked() {
		p.line.wakeLocked(time.Now())
	}
}

// releaseSlotLocked gives back a slot as releaseSlot does. It reports whether other requests can use the slot.
func (p *Place) releaseSlotLocked() bool {
	if !p.slotted {
		return false
	}
	p.slotted = false
	p.line.held--
	return p.line.slots > 0
}

// sleep waits until the place is woken, the instant has come, or the context ends. The place may have been sent by then.
func (p *Place) sleep(until time.Time) error {
	if until == never || p.isLate(until) {
		if until = p.deadline; until != never {
			until = until.Add(1) // one nanosecond after the instant
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

func (p *Place) rouse() {
	select {
	case p.wake <- struct{}{}:
	default: // a wake-up is there already
	}
}
