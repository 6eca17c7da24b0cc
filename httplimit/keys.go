package httplimit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/internal/undecided"
)

// A key function returns the key of a request, by which a limit counts. The functions
// of this package have the type that [ratelimit.By] and [ratelimit.Map] take. None
// returns a key that means "no key": if the key is missing, it returns an error, or
// leaves the layer out if it is wrapped in [Optional].
var (
	// ErrNoKey says that a request lacks its key: a header field is missing, for example.
	ErrNoKey = undecided.ErrNoKey

	// ErrMalformedKey says that a request has a key in a form that no honest client or
	// proxy sends: an address that cannot be parsed, two values instead of one, or a text
	// above 1 KiB, which a limiter would have to keep.
	ErrMalformedKey = undecided.ErrMalformedKey

	// ErrMisconfigured says that a key function cannot work because of how the server
	// is built, whatever the client sends: it asks for a route pattern before routing.
	// It is answered with 500. Such an error wraps ErrNoKey as well, and [Optional] does
	// not skip it.
	ErrMisconfigured = undecided.ErrMisconfigured
)

// Optional leaves the layer out ([ratelimit.SkipLayer]) for requests that have no
// key. Those requests are not limited by it, so let another layer count them. Without
// another layer, with [ratelimit.Map] or in a stack whose layers are all optional, a request
// without a key is not limited at all. A malformed key is still an error.
func Optional[K any](key func(*http.Request) (K, error)) func(*http.Request) (K, error) {
	return edge.Optional(key)
}

// Unless returns a key function for those requests only that have no key of known, such as
// anonymous ones: those are counted by key, and the layer is left out ([ratelimit.SkipLayer]) for
// all others. Beside a layer of Optional(known), each request has exactly one of the two. An
// error of known other than a missing key is its error.
func Unless[A, K any](known func(*http.Request) (A, error), key func(*http.Request) (K, error)) func(*http.Request) (K, error) {
	return edge.Unless(known, key)
}

// Pair is two keys as one. It is a struct, so ("a:b", "c") and ("a", "b:c") differ.
type Pair[A, B comparable] struct {
	A A
	B B
}

// Join returns a key function for both keys together: each login name from each
// address. An error of either is its error, a skipped layer included. For three,
// Join(a, Join(b, c)).
func Join[A, B comparable](a func(*http.Request) (A, error), b func(*http.Request) (B, error)) func(*http.Request) (Pair[A, B], error) {
	return func(r *http.Request) (k Pair[A, B], err error) {
		if k.A, err = a(r); err == nil {
			k.B, err = b(r)
		}
		return k, err
	}
}

// Header returns a key function for the value of a header field. It is ErrNoKey if
// the field is missing or empty, and ErrMalformedKey if it is longer than 1 KiB, or if
// there are several lines, since another program may read another one of them. Clients
// write what they like in a header: use it if a proxy or other middleware has set or
// checked the field, or beside a limit by address. For secrets, use [APIKey].
func Header(name string) func(*http.Request) (string, error) {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) {
		value, err := keytext.Single(r.Header[name], name)
		if err != nil {
			return "", err
		}
		return kept(value, name)
	}
}

// kept returns a text that may be kept as a key: neither long, nor a part of something
// long, such as the request line, that it would keep in memory.
func kept(value, what string) (string, error) {
	short, err := keytext.Short(value, what)
	return strings.Clone(short), err
}

// Hash is the SHA-256 of a secret. It takes the secret's place in a limiter's table, in
// logs and in a table of plans, and is the same in every process. If a secret can be
// guessed, its hash does not protect it.
type Hash [sha256.Size]byte

// HashOf returns the Hash of a secret, to look plans up in [ratelimit.Options].LimitFor.
func HashOf(secret string) Hash {
	var short [256]byte // on the stack, as long as that is enough
	return sha256.Sum256(append(short[:0], secret...))
}

// String returns the first eight bytes in hex, enough to tell hashes apart in a log.
func (h Hash) String() string { return hex.EncodeToString(h[:8]) }

// hashed returns a key function for the hash of what another one finds.
func hashed(secret func(*http.Request) (string, error)) func(*http.Request) (Hash, error) {
	return func(r *http.Request) (Hash, error) {
		s, err := secret(r)
		if err != nil {
			return Hash{}, err
		}
		return HashOf(s), nil
	}
}

// APIKey returns a key function for the hash of a header field that holds a secret,
// such as X-API-Key. The errors are those of [Header], but it may be of any length.
// Whether the secret is valid is not checked: put it behind what does, or beside a
// limit by address. For Authorization, whose value can be written in several ways,
// use [BearerToken].
func APIKey(name string) func(*http.Request) (Hash, error) {
	name = http.CanonicalHeaderKey(name)
	return hashed(func(r *http.Request) (string, error) { return keytext.Single(r.Header[name], name) })
}

// BearerToken is a key function for the hash of the token in "Authorization: Bearer
// token". It is ErrNoKey if there is no such field or another scheme in it. Like
// [APIKey], it checks no token.
func BearerToken(r *http.Request) (Hash, error) { return bearer(r) }

var bearer = hashed(func(r *http.Request) (string, error) { return keytext.Bearer(r.Header["Authorization"]) })

// Cookie returns a key function for the hash of a cookie's value, such as a session. It
// is ErrNoKey if the cookie is missing or empty, and ErrMalformedKey if it is there
// twice. Like [APIKey], it checks no session.
func Cookie(name string) func(*http.Request) (Hash, error) {
	return hashed(func(r *http.Request) (string, error) {
		var values []string
		for _, c := range r.CookiesNamed(name) {
			values = append(values, c.Value)
		}
		return keytext.Single(values, "cookie "+name)
	})
}

// PathValue returns a key function for a wildcard of the route's pattern, such as
// "tenant" in "/tenants/{tenant}/". It is ErrMalformedKey if it is longer than 1 KiB,
// and ErrNoKey if it is empty. If the request has no pattern yet, because the middleware
// wraps the mux and not the handlers in it, the error is [ErrMisconfigured] too.
func PathValue(name string) func(*http.Request) (string, error) {
	return func(r *http.Request) (string, error) {
		if v := r.PathValue(name); v != "" {
			return kept(v, "path value "+name)
		}
		if r.Pattern == "" {
			return "", fmt.Errorf("%w: %w: no path value %q before routing: wrap the handlers in the mux", ErrMisconfigured, ErrNoKey, name)
		}
		return "", fmt.Errorf("%w: no path value %q", ErrNoKey, name)
	}
}

// Pattern is a key function for the route's pattern, such as "GET /items/{id}", as
// [http.ServeMux] found it: a key for each route, however many paths it has. It is
// [ErrMisconfigured] and ErrNoKey if there is none, because the middleware wraps the mux
// and not the handlers in it.
func Pattern(r *http.Request) (string, error) {
	if r.Pattern == "" {
		return "", fmt.Errorf("%w: %w: no route pattern before routing: wrap the handlers in the mux", ErrMisconfigured, ErrNoKey)
	}
	return r.Pattern, nil
}

// Method is a key function for the request's method. Methods that net/http has no
// name for are all "OTHER", so that a client does not get another budget by inventing one.
func Method(r *http.Request) (string, error) {
	if r.Method == "" {
		return http.MethodGet, nil // so net/http reads it
	}
	if i := slices.Index(methods, r.Method); i >= 0 {
		return methods[i], nil // r.Method is a part of the request line, and would keep all of it
	}
	return "OTHER", nil
}

var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
}
