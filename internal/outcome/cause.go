// Package undecided tells why a request or a call could not be decided: who is to blame,
// and whether it may be let through. The middlewares for HTTP and gRPC share it.
package undecided

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Reason is why a request could not be decided. It says who is to blame, and what the
// answer is.
type Reason uint8

const (
	Other         Reason = iota // the limiter or a key function failed
	Unavailable                 // the limiter's store is down
	TableFull                   // clients have brought too many keys
	Key                         // the client's key is missing or malformed
	Cost                        // the cost is negative, which a client may have caused
	Gone                        // the request's context has ended: the client hung up
	Misconfigured               // the server is built wrongly

	Reasons = iota
)

// causes tells reasons by their errors. The first that matches counts: a misconfigured
// key function's error is an ErrNoKey as well.
var causes = []struct {
	err    error
	reason Reason
}{
	{keyfunc.ErrMisconfigured, Misconfigured},
	{keyfunc.ErrNoKey, Key},
	{keyfunc.ErrMalformedKey, Key},
	{ratelimit.ErrInvalidKey, Key},
	{ratelimit.ErrNegativeCost, Cost},
	{ratelimit.ErrTableFull, TableFull},
}

// Why returns the reason of an error, given the request's context. A client that hangs
// up makes the call of a remote limiter fail, with whatever error.
func Why(ctx context.Context, err error) Reason {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.reason
		}
	}
	switch {
	case ctx.Err() != nil:
		return Gone
	case errors.Is(err, ratelimit.ErrUnavailable):
		return Unavailable
	}
	return Other
}

// FailsOpen reports whether the option FailOpen applies. Where a client can bring the
// error about, it would be a way past every limit.
func (r Reason) FailsOpen() bool { return r == Other || r == Unavailable }

// ByClient reports whether the client can have brought the error about.
func (r Reason) ByClient() bool { return !r.FailsOpen() && r != Misconfigured }

// Rejected reports whether the client alone has brought the error about: it has sent no key that counts, or has gone.
func (r Reason) Rejected() bool { return r == Key || r == Gone }

// Level is that of the log line.
func (r Reason) Level() slog.Level {
	switch {
	case r == Gone:
		return slog.LevelDebug
	case r.Rejected():
		return slog.LevelInfo
	}
	return slog.LevelError
}

// Plain returns the error of a key function as that has returned it: without the number of the layer, which stacks of layers
// put before it, and without the part of a ban.
func Plain(err error) error {
	for !errors.Is(err, ratelimit.ErrInvalidKey) { // which says nothing without the layer
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

// Retryable reports whether the same request may be decided a little later.
func (r Reason) Retryable() bool { return r == Unavailable || r == TableFull }
