package outcome

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Cause is the cause of a failed decision: the side at fault, from which the middlewares derive the answer.
type Cause uint8

const (
	CauseOther         Cause = iota // the limiter or a key function failed
	CauseUnavailable                // the limiter's store is down
	CauseTableFull                  // clients use too many keys
	CauseKey                        // the client's key is missing or malformed
	CauseCost                       // the cost is negative, which a client may have caused
	CauseGone                       // the request's context has ended: the client hung up
	CauseMisconfigured              // the server is misconfigured

	Causes = iota // the number of causes
)

// causes maps errors to causes. The first match counts: a misconfigured
// key function's error is an ErrNoKey as well.
var causes = []struct {
	err   error
	cause Cause
}{
	{keyfunc.ErrMisconfigured, CauseMisconfigured},
	{keyfunc.ErrNoKey, CauseKey},
	{keyfunc.ErrMalformedKey, CauseKey},
	{ratelimit.ErrInvalidKey, CauseKey},
	{ratelimit.ErrNegativeCost, CauseCost},
	{ratelimit.ErrTableFull, CauseTableFull},
}

// CauseOf returns the cause of an error, given the request's context. A client that hangs
// up makes the call of a remote limiter fail, with any error.
func CauseOf(ctx context.Context, err error) Cause {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.cause
		}
	}
	switch {
	case ctx.Err() != nil:
		return CauseGone
	case errors.Is(err, ratelimit.ErrUnavailable):
		return CauseUnavailable
	}
	return CauseOther
}

// FailsOpen reports whether the option FailOpen applies. For an error that a client can cause,
// it would be a way past every limit.
func (c Cause) FailsOpen() bool { return c == CauseOther || c == CauseUnavailable }

// ByClient reports whether the client may have caused the error.
func (c Cause) ByClient() bool { return !c.FailsOpen() && c != CauseMisconfigured }

// Rejected reports whether the client alone has caused the error: it has sent no valid key, or has disconnected.
func (c Cause) Rejected() bool { return c == CauseKey || c == CauseGone }

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

// Plain returns the error of a key function in its original form: without the number of the layer that a stack adds, and
// without the part that a ban adds.
func Plain(err error) error {
	for !errors.Is(err, ratelimit.ErrInvalidKey) { // which means nothing without the layer
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

// Retryable reports whether the same request may be decided when retried shortly.
func (c Cause) Retryable() bool { return c == CauseUnavailable || c == CauseTableFull }
