package inflight

import (
	"context"
	"fmt"
	"math"

	"github.com/weir-go/ratelimit"
)

// refusal is an error whose text is built only once, because refusals must be cheap under overload.
type refusal struct {
	text string
	is   error
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.is }

var (
	errNoRoom      = &refusal{"inflight: no permit is free", ratelimit.ErrLimited}
	errQueueFull   = &refusal{"inflight: no permit is free, and the key's queue is full", ratelimit.ErrLimited}
	errTooLate     = &refusal{"inflight: the context ends before the work could", ratelimit.ErrLimited}
	errShed        = &refusal{"inflight: thrown out of the queue for a higher priority", ratelimit.ErrLimited}
	errTooManyWait = &refusal{"inflight: no permit is free, and too many wait", ratelimit.ErrLimited}
	errBlocked     = &refusal{"inflight: the key is blocked", ratelimit.ErrBlocked}
)

func errNegative(n int) error {
	return fmt.Errorf("inflight: %w: %d", ratelimit.ErrNegativeCost, n)
}

// errExceeds returns the error for n units beyond a bound. A bound of 0 blocks the key.
func errExceeds(n, bound int, what string) error {
	if bound == 0 {
		return errBlocked
	}
	return fmt.Errorf("inflight: %w: %d is above the %s of %d", ratelimit.ErrExceedsLimit, n, what, bound)
}

func errFull(keys int) error {
	return fmt.Errorf("inflight: %w: all %d keys are in use", ratelimit.ErrTableFull, keys)
}

// noTotal stands for an [Options.Total] of 0.
const noTotal = math.MaxInt

// errGaveUp returns the error of a wait whose context has ended. It wraps the context's error and its cause.
func errGaveUp(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err {
		return fmt.Errorf("inflight: gave up: %w", err)
	}
	return fmt.Errorf("inflight: gave up: %w: %w", err, cause)
}
