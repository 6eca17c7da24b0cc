package ratelimittest

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
)

// promise is a sentence of the contract.
type promise string

const (
	retryAfterIsTrue promise = "promise 1 (RetryAfter is true)"
	remainingIsTrue  promise = "promise 2 (Remaining is true)"
	resetAfterIsTrue promise = "promise 3 (ResetAfter is true)"
	nextAfterIsTrue  promise = "promise 3 (NextAfter is true)"
	chargesNothing   promise = "promise 4 (a denial charges nothing)"
	boundHolds       promise = "promise 5 (the bound holds)"
	exact            promise = "promise 6 (exact in integers)"
	timeIsMonotonic  promise = "promise 7 (time)"
	saturates        promise = "promise 8 (saturation)"

	keysAreSeparate promise = "the promise that each key has a budget of its own"
	neverPanics     promise = "the promise that no call panics"
	namesItsLimit   promise = "the promise that a Decision names its limit"
	reserveIsTrue   promise = "the promise of Reserve"
	settleIsTrue    promise = "the promise of Settle"
	waitIsTrue      promise = "the promise of Wait"
	adjustIsTrue    promise = "the promise of Adjust"
	resetForgets    promise = "the promise of Reset"
	joinIsTrue      promise = "the promise of Join, that a stack charges all keys or none,"
	sweepIsSafe     promise = "the promise of Sweep"
	spentStays      promise = "the promise of SetLimit"
	keysAreBounded  promise = "the promise of MaxKeys"
	storeIsShared   promise = "the promise that clients of one store share its budgets"
	timeMoves       promise = "the promise of Config, that time can be moved,"
	canDecide       promise = "the promise that an engine can decide"
	closes          promise = "the promise of Close"
)

// violation is a broken promise, with the calls before it.
type violation struct {
	promise promise
	limit   ratelimit.Limit
	check   string
	what    string
	seed    uint64
	steps   []step
}

// step is one line of a history's sequence. Only a failure formats it.
// Most steps are calls with a Decision: recording one allocates nothing.
type step struct {
	at     time.Duration
	format string
	args   []any

	call   string // replaces the format if not empty
	key    *testedKey
	cost   int
	answer answer
}

func (s step) String() string {
	if s.call != "" {
		return fmt.Sprintf("%-14v %s(%s, %d): %s", s.at, s.call, s.key.shown(), s.cost, s.answer)
	}
	return fmt.Sprintf("%-14v ", s.at) + fmt.Sprintf(s.format, s.args...)
}

// lastSteps is the maximum number of steps in a failure: the last ones of a long history.
const lastSteps = 60

// Error returns the promise, the limit, the fault, the seed and the sequence.
func (v *violation) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ratelimittest: %s is broken by %v, where %s:\n    %s\n", v.promise, v.limit, v.check, v.what)
	fmt.Fprintf(&b, "  Config.Seed %d repeats it. The sequence", v.seed)
	steps := v.steps
	if left := len(steps) - lastSteps; left > 0 {
		steps = steps[left:]
		fmt.Fprintf(&b, ", without the first %d steps", left)
	}
	b.WriteString(":\n")
	for _, s := range steps {
		fmt.Fprintf(&b, "    %v\n", s)
	}
	return b.String()
}

// enough ends a history without a failure: at its latest instant, or if the engine does not support the next limit.
type enough struct{}

// unavailable ends a history because the engine could not decide.
// The key's state is unknown, since the call may have charged it.
type unavailable struct{ err error }

// reached ends the history if the call failed because the engine could not decide. It also ends the history after
// ErrUnanswered: a booking's context has ended while the engine wrote the booking, so the charge is unknown.
func (h *history) reached(err error) {
	if errors.Is(err, ratelimit.ErrUnavailable) || errors.Is(err, ratelimit.ErrUnanswered) {
		panic(unavailable{err})
	}
}

// caught returns the violation with which a history ended, or nil.
func (h *history) caught(check string, ended any) (v *violation) {
	switch e := ended.(type) {
	case nil, enough:
		return nil
	case unavailable:
		v = h.violation(canDecide, e.err.Error())
	case *violation:
		v = e
	default:
		v = h.violation(neverPanics, fmt.Sprintf("%v\n%s", e, debug.Stack()))
	}
	v.check = check
	return v
}

func (h *history) violation(p promise, what string) *violation {
	return &violation{promise: p, limit: h.limit, what: what, seed: h.cfg.Seed, steps: slices.Clone(h.steps)}
}

// fail ends the history.
func (h *history) fail(p promise, format string, args ...any) {
	panic(h.violation(p, fmt.Sprintf(format, args...)))
}

// must ends the history unless ok is true.
func (h *history) must(ok bool, p promise, format string, args ...any) {
	if !ok {
		h.fail(p, format, args...)
	}
}

func (h *history) note(format string, args ...any) {
	h.steps = append(h.steps, step{at: h.now, format: format, args: args})
}

func (p *testedKey) noteCall(call string, cost int, d ratelimit.Decision, err error) {
	p.steps = append(p.steps, step{at: p.now, call: call, key: p, cost: cost, answer: answer{d, err}})
}

// answer is a Decision or an error in short form.
type answer struct {
	d   ratelimit.Decision
	err error
}

func described(d ratelimit.Decision, err error) answer { return answer{d, err} }

func (a answer) String() string {
	if a.err != nil {
		return fmt.Sprintf("error %q", a.err)
	}
	d := a.d
	word := "denied"
	if d.Allowed {
		word = "allowed"
	}
	s := fmt.Sprintf("%s, remaining %d", word, d.Remaining)
	for _, span := range []struct {
		name string
		d    time.Duration
	}{{"retry", d.RetryAfter}, {"reset", d.ResetAfter}, {"next", d.NextAfter}, {"delay", d.Delay}} {
		if span.d != 0 {
			s += fmt.Sprintf(", %s %v", span.name, span.d)
		}
	}
	return s
}
