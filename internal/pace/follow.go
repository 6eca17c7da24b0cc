package pace

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/follow"
)

// followsLocked reports whether the head must wait by its reservation's own Wait: if its instant is far ahead,
// because such an instant may move when the limiter's key or limit changes. Nearer bookings keep their instants.
func (l *line) followsLocked(p *Place, now time.Time) bool {
	return p.at.After(now.Add(bookAhead)) && follow.Moves(p.res)
}

// followLocked prepares a place to wait with its booking.
func (l *line) followLocked(p *Place) {
	if p.deadline.IsZero() {
		p.following, p.stop = context.WithCancel(p.ctx)
	} else {
		p.following, p.stop = context.WithDeadline(p.ctx, p.deadline)
	}
}

// follow waits with the head's booking. It returns an error if the place must give up.
func (pc *Pacer[R]) follow(p *Place) error {
	l := p.line
	l.mu.Lock()
	ctx, stop, res := p.following, p.stop, p.res // res is nil if the booking was taken back at once
	l.mu.Unlock()
	defer stop()
	ended := false
	defer func() {
		if !ended { // the limiter has panicked
			l.mu.Lock()
			defer l.mu.Unlock()
			l.endFollowLocked(p)
		}
	}()
	err := res.Wait(ctx)
	ended = true
	// a second error means that the booking could not be given back
	if errs, ok := err.(interface{ Unwrap() []error }); ok && len(errs.Unwrap()) > 1 {
		pc.stats.unsettled.Add(1)
	}
	now := time.Now()
	l.mu.Lock()
	switch {
	case p.res == nil:
		l.mu.Unlock()
		pc.undo(res) // the booking may have been granted at this moment
		l.mu.Lock()
		l.endFollowLocked(p)
		l.mu.Unlock()
		return nil
	case err == nil:
		p.at = now
		l.endFollowLocked(p)
		l.mu.Unlock()
		return nil
	}
	p.following = nil
	behind := l.unbookLocked(0) // the places behind move up
	l.mu.Unlock()
	pc.cancel(l, behind)
	var late *ratelimit.LateError
	switch {
	case p.ctx.Err() != nil:
		return p.ctx.Err()
	case errors.As(err, &late):
		return p.tooLate(now.Add(late.After), late.Limit)
	case errors.Is(err, context.DeadlineExceeded):
		return p.tooLate(now, res.Limit)
	}
	return err
}

// endFollowLocked ends a place's wait with its booking. The booking may have been taken back.
func (l *line) endFollowLocked(p *Place) {
	p.following = nil
	if p.res == nil {
		l.undoing--
	}
	l.wakeLocked(time.Now())
}
