package failover

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// answer is what an engine says.
type answer struct {
	decision ratelimit.Decision
	res      *ratelimit.Reservation // if one was asked for
	err      error
	panicked bool
	standIn  bool // said by what stands in
}

// outcome says what a call of the primary has come to.
type outcome uint8

const (
	answered    outcome = iota // a decision
	refused                    // an error about this call: it tells nothing about the primary
	unavailable                // ErrUnavailable
	overdue                    // no answer within Options.Timeout
	panicked
	busy // not called: too many calls are under way
)

// String names the outcome in logs.
func (o outcome) String() string {
	return [...]string{"answered", "refused", "unavailable", "timeout", "panic", "busy"}[o]
}

// instead reports whether the caller is to be answered by what stands in.
func (o outcome) instead() bool { return o >= unavailable }

// health is what the breaker is told.
func (o outcome) health() error {
	switch o {
	case answered:
		return nil
	case refused, busy:
		return errNothing
	}
	return errFailure
}

// maxUnderWay is how many calls of the primary are under way at most, if each has a
// goroutine of its own. A primary that never returns costs no more than that.
const maxUnderWay = 128

// caller calls the primary, and lets the caller go in time.
type caller struct {
	timeout time.Duration // below zero: none
	slots   chan struct{} // one for each call under way
}

func newCaller(timeout time.Duration) *caller {
	return &caller{timeout: timeout, slots: make(chan struct{}, maxUnderWay)}
}

// call calls f. What f answers after the caller has left is given to late.
func (c *caller) call(ctx context.Context, f func(ctx context.Context) answer, late func(answer)) (answer, outcome) {
	if c.timeout < 0 {
		a := guarded(ctx, f)
		return a, judge(ctx, ctx, a)
	}
	select {
	case c.slots <- struct{}{}:
	default:
		return answer{}, busy
	}
	bounded, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	r := &run{answers: make(chan answer, 1)}
	go func() {
		defer func() { <-c.slots }()
		r.deliver(guarded(bounded, f), late)
	}()
	a := r.wait(bounded)
	return a, judge(ctx, bounded, a)
}

// run is one call on a goroutine of its own.
type run struct {
	over    atomic.Bool // the answer was delivered, or the caller has left
	answers chan answer
}

// deliver hands the answer over, or to late if the caller has left.
func (r *run) deliver(a answer, late func(answer)) {
	if r.over.CompareAndSwap(false, true) {
		r.answers <- a
	} else if late != nil {
		defer func() { _ = recover() }() // the caller was answered long ago
		late(a)
	}
}

// wait waits for the answer, and leaves when the context ends.
func (r *run) wait(ctx context.Context) answer {
	select {
	case a := <-r.answers:
		return a
	case <-ctx.Done():
	}
	if r.over.CompareAndSwap(false, true) {
		return answer{err: ctx.Err()}
	}
	return <-r.answers // at the same instant, which is in time
}

// guarded calls f, and turns a panic into an error. The text of the panic may hold a
// key, so that only a runtime error's is told.
func guarded(ctx context.Context, f func(ctx context.Context) answer) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a = answer{err: panicError(p), panicked: true}
		}
	}()
	return f(ctx)
}

func panicError(p any) error {
	what := fmt.Sprintf("a %T", p)
	if e, ok := p.(runtime.Error); ok {
		what = e.Error()
	}
	return fmt.Errorf("failover: the primary panicked with %s, at %s", what, panicSite())
}

// panicSite is the place in the code that panicked: the first frame below the runtime's.
func panicSite() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	below := false
	for {
		f, more := frames.Next()
		if below && len(f.Function) > 8 && f.Function[:8] != "runtime." {
			return fmt.Sprintf("%s (line %d)", f.Function, f.Line)
		}
		below = below || f.Function == "runtime.gopanic"
		if !more {
			return "an unknown place"
		}
	}
}

// judge says what a call has come to. An error of a caller whose own context has ended
// is that caller's, whatever else was wrong.
func judge(caller, bounded context.Context, a answer) outcome {
	switch {
	case a.panicked:
		return panicked
	case a.err == nil:
		return answered
	case ended(caller):
		return refused
	case errors.Is(a.err, ratelimit.ErrUnavailable):
		return unavailable
	case ended(bounded), errors.Is(a.err, context.DeadlineExceeded), errors.Is(a.err, context.Canceled):
		return overdue // the caller's context has not ended, so that it is ours or the primary's own
	}
	return refused
}

// ended reports whether a context has ended. On a busy machine its timer fires late: a
// primary that compares times knows of the deadline before Err does.
func ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}
