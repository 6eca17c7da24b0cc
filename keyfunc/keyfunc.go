// Package keyfunc combines key functions. A key function returns the key of a request, by which a limit counts. Its type is
// the one that [ratelimit.By] and [ratelimit.Map] take, for whatever a request is: an *http.Request, a *grpclimit.Call or a
// *connectlimit.Call. Packages httplimit, grpclimit and connectlimit have key functions of these.
//
//	logins := ratelimit.By(limiter, keyfunc.Join(httplimit.RemoteIP, httplimit.PathValue("account")))
//
// No key function returns a key that means "no key". If the key is missing it returns an error, or leaves the layer out if it
// is wrapped in [Optional].
package keyfunc

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/weir-go/ratelimit"
)

// The errors of key functions. A key function of your own wraps them, with what is missing:
//
//	fmt.Errorf("%w: no tenant", keyfunc.ErrNoKey)
var (
	// ErrNoKey says that a request lacks its key: a header field is missing, for example.
	ErrNoKey = errors.New("no key")

	// ErrMalformedKey says that a request has a key in a form that no honest client or proxy sends: an address that
	// cannot be parsed, two values instead of one, or a text above 1 KiB.
	ErrMalformedKey = errors.New("malformed key")

	// ErrMisconfigured says that a key function cannot work, whatever the client sends: it asks for a route pattern
	// before routing. The middlewares answer it as a fault of the server. [Optional] does not skip it.
	ErrMisconfigured = errors.New("misconfigured server")
)

// Pair is two keys as one: ("a:b", "c") and ("a", "b:c") differ.
type Pair[A, B comparable] struct {
	A A
	B B
}

// Join returns a key function for both keys together. An error of either is its error, a skipped layer included. For three,
// Join(a, Join(b, c)).
func Join[R any, A, B comparable](a func(R) (A, error), b func(R) (B, error)) func(R) (Pair[A, B], error) {
	return func(r R) (k Pair[A, B], err error) {
		if k.A, err = a(r); err == nil {
			k.B, err = b(r)
		}
		return k, err
	}
}

// Optional returns a key function that leaves the layer out ([ratelimit.SkipLayer]) for requests without a key. Let another
// layer count those: see [Unless]. A malformed key is still an error.
func Optional[R, K any](key func(R) (K, error)) func(R) (K, error) {
	return func(r R) (K, error) {
		k, err := key(r)
		if errors.Is(err, ErrNoKey) && !errors.Is(err, ErrMisconfigured) {
			err = ratelimit.SkipLayer
		}
		return k, err
	}
}

// Unless returns a key function for requests that have no key of known, such as anonymous ones. For all others it leaves
// the layer out ([ratelimit.SkipLayer]). Beside a layer of Optional(known), each request has exactly one of the two. An
// error of known other than a missing key is its error.
func Unless[R, A, K any](known func(R) (A, error), key func(R) (K, error)) func(R) (K, error) {
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

// Hash is the SHA-256 of a secret, such as an API key, to be a key in its place. It is the same in every process. It does not
// protect a secret that can be guessed.
type Hash [sha256.Size]byte

// HashOf returns the Hash of a secret.
func HashOf(secret string) Hash {
	var short [256]byte // on the stack, as long as that is enough
	return sha256.Sum256(append(short[:0], secret...))
}

// String returns the first eight bytes in hex.
func (h Hash) String() string { return hex.EncodeToString(h[:8]) }
