package outcome

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
)

// Undecided is the error of a call that a remote limiter could not decide: [ratelimit.ErrUnavailable], and
// [ratelimit.ErrUnanswered] if it was sent, so that it may have been charged.
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

// EndOf returns the reason for which a context has ended, nil if it has not. On a busy machine the context's timer fires late: code that
// compares times, such as a connection's deadline, detects the deadline before Err does.
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
