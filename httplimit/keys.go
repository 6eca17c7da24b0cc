package httplimit

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Header returns a key function for a header field's value. A proxy or another middleware must set or check
// it, because clients can send any value. The key function returns [keyfunc.ErrNoKey] if there is no value,
// and [keyfunc.ErrMalformedKey] if the value is above 1 KiB or there are several. For secrets use [APIKey].
func Header(name string) func(*http.Request) (string, error) {
	name = http.CanonicalHeaderKey(name)
	value := single(name)
	return func(r *http.Request) (string, error) {
		v, err := value(r)
		if err != nil {
			return "", err
		}
		return kept(v, name)
	}
}

// kept returns a copy of a text for use as a key, or an error if it is too long. The copy is not
// part of a longer text, for example the request line: otherwise that would stay in memory, too.
func kept(value, what string) (string, error) {
	short, err := keytext.Short(value, what)
	return strings.Clone(short), err
}

// single returns a key function for the only value of a header field, of any length.
func single(name string) func(*http.Request) (string, error) {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) { return keytext.Single(r.Header[name], name) }
}

// APIKey returns a key function for a header field's secret, hashed. The secret may
// have any length, and is not checked. The key function fails as [Header]'s does.
func APIKey(name string) func(*http.Request) (keyfunc.Hash, error) {
	return keyfunc.APIKey(single(name))
}

// BearerToken is [APIKey] for the token in "Authorization: Bearer token". Use it for opaque tokens only.
// Verifiers accept a JWT in several spellings, for example 16 with different last characters of the signature,
// and each would have its own budget. For JWTs use a verified claim as the key, after authentication.
func BearerToken(r *http.Request) (keyfunc.Hash, error) { return bearer(r) }

var bearer = keyfunc.BearerToken(single("Authorization"))

// PathValue returns a key function for a wildcard of the route's pattern. The key function returns
// [keyfunc.ErrNoKey] if the wildcard is empty, and [keyfunc.ErrMalformedKey] above 1 KiB. It returns
// [keyfunc.ErrMisconfigured] if the request has no pattern yet: wrap the handlers in the mux, not the mux.
func PathValue(name string) func(*http.Request) (string, error) {
	return func(r *http.Request) (string, error) {
		if v := r.PathValue(name); v != "" {
			return kept(v, "path value "+name)
		}
		if r.Pattern == "" {
			return "", fmt.Errorf("%w: %w: no path value %q before routing: wrap the handlers in the mux", keyfunc.ErrMisconfigured, keyfunc.ErrNoKey, name)
		}
		return "", fmt.Errorf("%w: no path value %q", keyfunc.ErrNoKey, name)
	}
}

// Pattern is a key function for the route's pattern, such as "GET /items/{id}". It returns
// [keyfunc.ErrMisconfigured] if the request has no pattern yet, as for [PathValue].
func Pattern(r *http.Request) (string, error) {
	if r.Pattern == "" {
		return "", fmt.Errorf("%w: %w: no route pattern before routing: wrap the handlers in the mux", keyfunc.ErrMisconfigured, keyfunc.ErrNoKey)
	}
	return r.Pattern, nil
}
