package outcome

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Cause classifies a call's error by the side at fault, and by whether a limiter has refused the call.
// It determines the metrics, the middlewares' answers, and whether a remote limiter counts as failing.
type Cause uint8

const (
	CauseNone          Cause = iota // there is no error
	CauseOther                      // the limiter or a key function failed
	CauseUnavailable                // the limiter's store is down
	CauseTableFull                  // clients use too many keys
	CauseKey                        // the client's key is missing or malformed
	CauseCost                       // the cost is negative: a client may have caused this
	CauseMisconfigured              // the server is misconfigured
	CauseBlocked                    // no cost can ever pass
	CauseExceeds                    // this cost can never pass
	CauseLimited                    // there is no room now
	CauseEnded                      // a context has ended, the caller's or the limiter's own, by a timeout
	CauseGone                       // the request's context has ended: the client hung up
	CauseRequest                    // the server refuses the request as malformed

	Causes = iota // the number of causes
)

// ErrBadRequest is the error of a malformed request, refused by the server before any limiter is called.
var ErrBadRequest = errors.New("malformed request")

// causes maps errors to causes. The first match counts: a misconfigured key function's error is an ErrNoKey as well, an ErrBlocked is an
// ErrExceedsLimit, and a store that exceeds its own timeout may wrap context.DeadlineExceeded.
var causes = []struct {
	err   error
	cause Cause
}{
	{ErrBadRequest, CauseRequest},
	{keyfunc.ErrMisconfigured, CauseMisconfigured},
	{keyfunc.ErrNoKey, CauseKey},
	{keyfunc.ErrMalformedKey, CauseKey},
	{ratelimit.ErrInvalidKey, CauseKey},
	{ratelimit.ErrNegativeCost, CauseCost},
	{ratelimit.ErrTableFull, CauseTableFull},
	{ratelimit.ErrBlocked, CauseBlocked},
	{ratelimit.ErrExceedsLimit, CauseExceeds},
	{ratelimit.ErrUnavailable, CauseUnavailable},
	{ratelimit.ErrLimited, CauseLimited},
	{context.DeadlineExceeded, CauseEnded},
	{context.Canceled, CauseEnded},
}

// CauseOf returns an error's cause.
func CauseOf(err error) Cause {
	if err == nil {
		return CauseNone
	}
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.cause
		}
	}
	return CauseOther
}

// CauseFor returns the cause of a request's error. ctx is the request's context.
// If a client hangs up, a call to a remote limiter may fail with any error.
func CauseFor(ctx context.Context, err error) Cause {
	cause := CauseOf(err)
	switch cause {
	case CauseOther, CauseUnavailable, CauseEnded:
		if ctx.Err() != nil {
			return CauseGone
		}
	}
	return cause
}

// Refused reports whether a limiter has refused the call, now or for ever.
func (c Cause) Refused() bool {
	return c == CauseLimited || c == CauseExceeds || c == CauseBlocked || c == CauseTableFull
}

// ByClient reports whether the client may have caused the error.
func (c Cause) ByClient() bool {
	return c.Rejected() || c == CauseTableFull || c == CauseCost
}

// FailsOpen reports whether the option FailOpen applies. It does not apply
// to errors that clients can cause: these would be a way past every limit.
func (c Cause) FailsOpen() bool { return !c.ByClient() && c != CauseMisconfigured }

// Rejected reports whether the client alone has caused the error: it has sent no valid key or a malformed request, or has disconnected.
func (c Cause) Rejected() bool { return c == CauseKey || c == CauseGone || c == CauseRequest }

// Retryable reports whether the same request may be decided when retried shortly.
func (c Cause) Retryable() bool { return c == CauseUnavailable || c == CauseTableFull }

// Level returns the level of the log line.
func (c Cause) Level() slog.Level {
	switch {
	case c == CauseGone:
		return slog.LevelDebug
	case c.Rejected():
		return slog.LevelInfo
	}
	return slog.LevelError
}

// Plain returns a key function's error in its original form: without
// the layer's number in a stack, and without a ban's prefix.
func Plain(err error) error {
	for !errors.Is(err, ratelimit.ErrInvalidKey) { // its text means nothing without the layer
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		prefix, ok := strings.CutSuffix(err.Error(), ": "+inner.Error())
		if !ok || prefix != "key" && prefix != "ban: bans" && !strings.HasSuffix(prefix, ": key") && !strings.Contains(prefix, "layer ") {
			return err
		}
		err = inner
	}
	return err
}
