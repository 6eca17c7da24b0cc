package sqllimit

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/outcome"
)

// pending is a caller's wait for its operation or demand. err may be read once done is closed.
type pending struct {
	ctx     context.Context
	undone  bool      // if the caller leaves, its spending is given back
	goesOn  bool      // if the caller leaves after the change was sent, another one takes the answer
	expires time.Time // if zero, it never expires
	stage   atomic.Int32
	done    chan struct{}
	err     error

	// The result of the last attempt:
	answered bool
	changed  bool // it changes a row
	after    bool // an earlier one in the same attempt had changed one of its rows
}

// An operation's or a demand's stages.
const (
	waiting int32 = iota
	sent          // its change is sent to the database
	left          // its caller no longer waits
)

// await begins the work and waits until it ends. It returns the error of the work, or of the wait.
func (p *pending) await(timeout time.Duration, begin func()) error {
	p.done = make(chan struct{})
	var timer <-chan time.Time
	if timeout >= 0 {
		p.expires = time.Now().Add(timeout)
		t := time.NewTimer(timeout)
		defer t.Stop()
		timer = t.C
	}
	begin()
	select {
	case <-p.done:
	case <-p.ctx.Done():
		if !p.answeredSoon() {
			if p.goesOn && p.stage.Load() == sent {
				return &unfinished{ended(p.ctx.Err(), true)}
			}
			if was := p.leave(); !p.isDone() {
				return ended(p.ctx.Err(), was)
			}
		}
	case <-timer:
		if was := p.leave(); !p.isDone() {
			if err := outcome.EndOf(p.ctx); err != nil {
				return ended(err, was)
			}
			return &outcome.Undecided{Cause: late(timeout), Sent: was}
		}
	}
	return p.err
}

// unfinished is the error of a caller whose operation goes on after the caller has left.
type unfinished struct{ error }

func (e *unfinished) Unwrap() error { return e.error }

// ended is the error of a caller whose own context has ended.
func ended(cause error, sent bool) error { return outcome.Ended("sqllimit", cause, sent) }

func late(timeout time.Duration) error {
	return fmt.Errorf("no answer within %v (Options.Timeout)", timeout)
}

// leave records the caller's leaving, and reports whether the change was sent.
func (p *pending) leave() bool { return p.stage.Swap(left) == sent }

func (p *pending) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// lingering is how long a caller waits for the answer to its spending after its context has ended, to give the spending back.
const lingering = 50 * time.Millisecond

// answeredSoon reports whether there is an answer after the caller's context has ended. If the
// spending has been sent and is to be given back, it waits a little longer for the answer.
func (p *pending) answeredSoon() bool {
	if !p.undone || p.stage.Load() != sent {
		return p.isDone()
	}
	t := time.NewTimer(lingering)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		return false
	}
}

// fails reports whether an error of the last attempt concerns the caller. It does not if the answer depends on no write.
func (p *pending) fails(err error) bool {
	return err != nil && (!p.answered || p.changed || p.after)
}

// recall marks the last attempt as unwritten.
func (p *pending) recall() {
	p.stage.CompareAndSwap(sent, waiting)
	p.answered, p.changed = false, false
}

func (p *pending) wait() *pending { return p }

// untilLast returns a context that ends when the last caller must have its answer.
// If a caller can wait forever, the context ends when all callers have left.
func untilLast[P interface{ wait() *pending }](timeout time.Duration, all []P) (context.Context, func()) {
	ctx := context.WithoutCancel(all[0].wait().ctx)
	if timeout >= 0 {
		return context.WithDeadline(ctx, all[len(all)-1].wait().expires)
	}
	ctx, cancel := context.WithCancel(ctx)
	var gone atomic.Int32
	var stops []func() bool
	for _, p := range all {
		stops = append(stops, context.AfterFunc(p.wait().ctx, func() {
			if int(gone.Add(1)) == len(all) {
				cancel()
			}
		}))
	}
	return ctx, func() {
		cancel()
		for _, stop := range stops {
			stop()
		}
	}
}
