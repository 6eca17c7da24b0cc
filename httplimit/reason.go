package httplimit

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/weir-go/ratelimit"
)

// reason is why a request could not be decided. It says who is to blame, and what the
// answer is.
type reason uint8

const (
	reasonOther         reason = iota // the limiter or a key function failed
	reasonUnavailable                 // the limiter's store is down
	reasonTableFull                   // clients have brought too many keys
	reasonKey                         // the client's key is missing or malformed
	reasonCost                        // the cost is negative, which a client may have caused
	reasonGone                        // the request's context has ended: the client hung up
	reasonMisconfigured               // the server is built wrongly

	reasons = iota
)

// causes tells reasons by their errors. The first that matches counts: a misconfigured
// key function's error is an ErrNoKey as well.
var causes = []struct {
	err error
	reason
}{
	{ErrMisconfigured, reasonMisconfigured},
	{ErrNoKey, reasonKey},
	{ErrMalformedKey, reasonKey},
	{ratelimit.ErrInvalidKey, reasonKey},
	{ratelimit.ErrNegativeCost, reasonCost},
	{ratelimit.ErrTableFull, reasonTableFull},
}

// reasonOf returns why an event has an error. A client that hangs up makes the call of a
// remote limiter fail, with whatever error.
func reasonOf(e *Event) reason {
	for _, c := range causes {
		if errors.Is(e.Err, c.err) {
			return c.reason
		}
	}
	switch {
	case e.Request.Context().Err() != nil:
		return reasonGone
	case errors.Is(e.Err, ratelimit.ErrUnavailable):
		return reasonUnavailable
	}
	return reasonOther
}

// failsOpen reports whether [Options].FailOpen applies. Where a client can bring the
// error about, it would be a way past every limit.
func (r reason) failsOpen() bool { return r == reasonOther || r == reasonUnavailable }

// byClient reports whether the client can have brought the error about.
func (r reason) byClient() bool { return !r.failsOpen() && r != reasonMisconfigured }

func (r reason) level() slog.Level {
	if r == reasonKey {
		return slog.LevelWarn
	}
	return slog.LevelError
}

// retryable reports whether the same request may be decided a little later.
func (r reason) retryable() bool { return r == reasonUnavailable || r == reasonTableFull }

func (r reason) problem() *problem {
	switch {
	case r == reasonKey:
		return badRequest
	case r.retryable():
		return reducedCapacity
	}
	return internalError
}

var (
	badRequest      = newPlainProblem(http.StatusBadRequest)
	internalError   = newPlainProblem(http.StatusInternalServerError)
	unavailable     = newPlainProblem(http.StatusServiceUnavailable)
	reducedCapacity = members{
		Type: typeReducedCapacity, Title: "Temporary reduced capacity", Status: http.StatusServiceUnavailable,
	}.encode()
)
