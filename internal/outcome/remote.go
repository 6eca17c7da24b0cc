package outcome

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Undecided is the error of a call if the remote limiter could not decide: [ratelimit.ErrUnavailable],
// and [ratelimit.ErrUnanswered] if the call was sent, because it may then have been charged.
type Undecided struct {
	Cause error
	Sent  bool
}

func (e *Undecided) Error() string {
	if e.Sent {
		return fmt.Sprintf("%v: %v: %v", ratelimit.ErrUnavailable, ratelimit.ErrUnanswered, e.Cause)
	}
	return fmt.Sprintf("%v: %v", ratelimit.ErrUnavailable, e.Cause)
}

func (e *Undecided) Unwrap() []error {
	if e.Sent {
		return []error{ratelimit.ErrUnavailable, ratelimit.ErrUnanswered, e.Cause}
	}
	return []error{ratelimit.ErrUnavailable, e.Cause}
}

// Exceeding returns a store's error for a cost that the limit can never allow.
func Exceeding(l ratelimit.Limit, cost int64) error {
	name := ""
	if l.Name != "" {
		name = fmt.Sprintf(" %q", l.Name)
	}
	if l.Algorithm == ratelimit.AlgorithmBlocked { // for which "cost 1 is above 0" would explain nothing
		return fmt.Errorf("%w: the limit%s allows no cost above 0", ratelimit.ErrBlocked, name)
	}
	return fmt.Errorf("%w%s: cost %d is above %d, the capacity of %v", ratelimit.ErrExceedsLimit, name, cost, l.Capacity(), l)
}

// Unbooked returns a store's error for a Wait whose booking was denied. d is the decision of a Reserve with the
// time left as its maximum delay, so its RetryAfter is how much too late the call's turn would come. Without a
// deadline, or if a leaky bucket's queue is full, the reason is ErrLimited. Otherwise the deadline is too early.
func Unbooked(d ratelimit.Decision, cost int, left time.Duration) error {
	if left == wait.Forever || d.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket && cost > d.Remaining {
		return &ratelimit.LateError{Limit: d.Limit, After: d.RetryAfter, Reason: ratelimit.ErrLimited}
	}
	return late(d.Limit, left+d.RetryAfter)
}

// late returns the error for a Wait whose context ends before its turn can come.
func late(l ratelimit.Limit, after time.Duration) error {
	return &ratelimit.LateError{Limit: l, After: after, Reason: context.DeadlineExceeded}
}

// EndOf returns why a context has ended, nil if it has not. On a busy machine the context's timer fires
// late: code that compares times, such as a connection's deadline, detects the deadline before Err does.
func EndOf(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// Ended returns a package's error for a caller whose own context has ended with the cause. It is a [ratelimit.ErrUnanswered] if the call was
// sent.
func Ended(pkg string, cause error, sent bool) error {
	if sent {
		return fmt.Errorf("%s: %w: %w", pkg, ratelimit.ErrUnanswered, cause)
	}
	return fmt.Errorf("%s: %w", pkg, cause)
}
