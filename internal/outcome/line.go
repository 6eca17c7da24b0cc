package outcome

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// PaceOf returns a limit's pace. It is zero for a limit without a rate. The length of a calendar's windows is not known.
func PaceOf(l ratelimit.Limit) turns.Pace {
	if l.Rate.Units <= 0 {
		return turns.Pace{}
	}
	queue := l.Algorithm == ratelimit.AlgorithmLeakyBucket
	p := turns.Pace{Units: l.Rate.Units, Per: l.Rate.Per, AtOnce: !queue && l.Algorithm != ratelimit.AlgorithmTokenBucket, Spaced: queue}
	if !queue {
		p.Burst = l.Capacity()
	}
	return p
}

// Beyond is the error of a booking whose instant is in time but too far ahead
// for the store. The store can make the booking after the decision's RetryAfter.
type Beyond struct {
	In time.Duration // the time until the instant
}

func (e *Beyond) Error() string { return "no booking reaches as far yet as " + e.In.String() }

// Unfinished is the error of a booking whose caller has left before the store's answer. Made waits for the answer.
type Unfinished struct {
	Err  error
	Made func() (Made, error)
}

func (e *Unfinished) Error() string { return e.Err.Error() }

// InLine is a store's Wait: it books when its caller's turn has come, and waits for the booked instant. The function book
// makes a booking, as Reserve does. If its error is a [*Beyond], the caller stays first in line, and books later. If it
// is an [*Unfinished], the caller leaves, and others take its booking. book is not called after the context has ended.
func InLine(ctx context.Context, lines *turns.Lines[string], key string, cost int, book func(turns.Request) (Made, error)) (d ratelimit.Decision, err error) {
	left, err := wait.Left(ctx)
	if err != nil {
		return d, err
	}
	one := func(q turns.Request) (a turns.Answer[string], err error) {
		left, err := wait.Left(ctx)
		if err != nil {
			return a, err
		}
		cost, ahead := q.Cost, min(q.Ahead, left)
		q.Ahead = ahead
		made, err := book(q)
		if q.Instead == nil {
			d = made.Decision
		}
		if u, goesOn := err.(*Unfinished); goesOn {
			return a, &turns.Unfinished[string]{Err: u.Err, Answer: func() (turns.Answer[string], error) { return inLine(u.Made()) }}
		}
		if a, err = inLine(made, err); err != nil || a.Allowed || a.Late > 0 || q.Instead != nil {
			return a, err
		}
		full := d.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket && cost > d.Remaining
		if excess := d.RetryAfter - (left - ahead); full || left == ahead || excess > 0 {
			if !full {
				d.RetryAfter = excess
			}
			return a, Unbooked(d, cost, left)
		}
		return a, nil
	}
	if cost <= 0 { // there is nothing to wait for
		_, err = one(turns.Request{Cost: cost, Ahead: left})
		return d, err
	}
	err = lines.Wait(ctx, key, cost, one)
	if err == nil && !d.Allowed { // the call has taken another caller's booking
		d.Allowed, d.RetryAfter = true, 0
	}
	if e, ok := err.(*turns.LateError); ok { // behind other callers of this process
		d.Allowed, d.Delay, d.RetryAfter = false, 0, e.In-left
		err = late(d.Limit, e.In)
	}
	return d, err
}

// inLine returns a booking's answer for the line.
func inLine(made Made, err error) (a turns.Answer[string], _ error) {
	var beyond *Beyond
	if err != nil && !errors.As(err, &beyond) {
		a.Unsure = errors.Is(err, ratelimit.ErrUnanswered)
		return a, err
	}
	d := made.Decision
	a.Pace = PaceOf(d.Limit)
	a.Allowed, a.Delay, a.At, a.Remaining = d.Allowed, d.Delay, made.At, d.Remaining
	a.Settle, a.Life, a.Ref, a.Confirm = made.Settle, made.Life, made.Ref, made.Confirm
	if d.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		a.Remaining = 0 // a queue's remaining units can enter now, but leave later
	}
	if a.Retry = d.RetryAfter; !d.Allowed && beyond != nil {
		a.Late = beyond.In
	}
	return a, nil
}
