// Package keyfunc combines key functions for [ratelimit.By] and [ratelimit.Map]. A key function returns a request's key. A
// request may be an *http.Request, or a call of grpclimit or connectlimit. These packages and httplimit have key functions.
//
//	logins := ratelimit.By(limiter, keyfunc.Join(httplimit.RemoteIP, httplimit.PathValue("account")))
package keyfunc

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Key functions return these errors. Your own key function wraps them, and names the missing part:
//
//	fmt.Errorf("%w: no tenant", keyfunc.ErrNoKey)
var (
	// ErrNoKey is for a request without a key.
	ErrNoKey = errors.New("no key")

	// ErrMalformedKey is returned for a key that no honest client sends, for example two values or a text above 1 KiB.
	ErrMalformedKey = errors.New("malformed key")

	// ErrMisconfigured is returned by a key function if it can never
	// work, because the server is at fault. [Optional] does not skip it.
	ErrMisconfigured = errors.New("misconfigured server")
)

// Pair is a key with two parts. The pairs ("a:b", "c") and ("a", "b:c") differ.
type Pair[A, B comparable] struct {
	A A
	B B
}

// Join returns a key function for both keys together. If either function fails, Join returns its error.
// If both fail, an error other than [ErrNoKey] has precedence. For three keys, write Join(a, Join(b, c)).
func Join[R any, A, B comparable](a func(R) (A, error), b func(R) (B, error)) func(R) (Pair[A, B], error) {
	mustBeGiven(a != nil, "Join: a")
	mustBeGiven(b != nil, "Join: b")
	return func(r R) (k Pair[A, B], err error) {
		if k.A, err = a(r); err != nil && !skippable(err) {
			return k, err
		}
		// A client must not escape the error for one key by leaving out the other.
		var other error
		if k.B, other = b(r); err == nil || other != nil && !skippable(other) {
			err = other
		}
		return k, err
	}
}

// mustBeGiven panics if a key function is nil: so the mistake is found before the first request.
func mustBeGiven(given bool, name string) {
	if !given {
		panic(optional.Nil("keyfunc: " + name))
	}
}

// skippable reports whether an error lets a layer be left out.
func skippable(err error) bool {
	return errors.Is(err, ratelimit.SkipLayer) || errors.Is(err, ErrNoKey) && !errors.Is(err, ErrMisconfigured)
}

// Optional returns a key function that leaves the layer out ([ratelimit.SkipLayer])
// for requests without a key: see [Otherwise]. A malformed key is still an error.
func Optional[R, K any](key func(R) (K, error)) func(R) (K, error) {
	mustBeGiven(key != nil, "Optional: key")
	return func(r R) (K, error) {
		k, err := key(r)
		if skippable(err) {
			err = ratelimit.SkipLayer
		}
		return k, err
	}
}

// Otherwise returns a key function for the requests to which known gives no key. For other requests it leaves the layer
// out ([ratelimit.SkipLayer]). Beside a layer of Optional(known), each request has exactly one of the two layers.
func Otherwise[R, A, K any](known func(R) (A, error), key func(R) (K, error)) func(R) (K, error) {
	mustBeGiven(known != nil, "Otherwise: known")
	mustBeGiven(key != nil, "Otherwise: key")
	known = Optional(known)
	return func(r R) (k K, err error) {
		switch _, err = known(r); {
		case err == nil:
			return k, ratelimit.SkipLayer
		case errors.Is(err, ratelimit.SkipLayer):
			return key(r)
		}
		return k, err
	}
}

// Hash is the SHA-256 of a secret. It serves as a key in the secret's place. It does not protect guessable secrets.
type Hash [sha256.Size]byte

// HashOf returns a secret's Hash.
func HashOf(secret string) Hash {
	var short [256]byte // on the stack, if the secret fits
	return sha256.Sum256(append(short[:0], secret...))
}

// String returns the first eight bytes in hex.
func (h Hash) String() string { return hex.EncodeToString(h[:8]) }
