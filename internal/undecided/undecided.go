// Package undecided tells why a request or a call could not be decided: who is to blame,
// and whether it may be let through. The middlewares for HTTP and gRPC share it.
package undecided

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weir-go/ratelimit"
)

// The errors of key functions. httplimit exports and documents them.
var (
	ErrNoKey         = errors.New("httplimit: request has no key")
	ErrMalformedKey  = errors.New("httplimit: request has a malformed key")
	ErrMisconfigured = errors.New("httplimit: server is misconfigured")
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
	{ErrMisconfigured, Misconfigured},
	{ErrNoKey, Key},
	{ErrMalformedKey, Key},
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

// Level is that of the log line.
func (r Reason) Level() slog.Level {
	if r == Key {
		return slog.LevelWarn
	}
	return slog.LevelError
}

// Retryable reports whether the same request may be decided a little later.
func (r Reason) Retryable() bool { return r == Unavailable || r == TableFull }
