package httplimit

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Header returns a key function for the value of a header field. It is keyfunc.ErrNoKey if
// the field is missing or empty, and keyfunc.ErrMalformedKey if it is longer than 1 KiB, or if
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

// hashed returns a key function for the hash of what another one finds.
func hashed(secret func(*http.Request) (string, error)) func(*http.Request) (keyfunc.Hash, error) {
	return func(r *http.Request) (keyfunc.Hash, error) {
		s, err := secret(r)
		if err != nil {
			return keyfunc.Hash{}, err
		}
		return keyfunc.HashOf(s), nil
	}
}

// APIKey returns a key function for the hash of a header field that holds a secret,
// such as X-API-Key. The errors are those of [Header], but it may be of any length.
// Whether the secret is valid is not checked: put it behind what does, or beside a
// limit by address. For Authorization, whose value can be written in several ways,
// use [BearerToken].
func APIKey(name string) func(*http.Request) (keyfunc.Hash, error) {
	name = http.CanonicalHeaderKey(name)
	return hashed(func(r *http.Request) (string, error) { return keytext.Single(r.Header[name], name) })
}

// BearerToken is a key function for the hash of the token in "Authorization: Bearer
// token". It is keyfunc.ErrNoKey if there is no such field or another scheme in it. Like
// [APIKey], it checks no token.
func BearerToken(r *http.Request) (keyfunc.Hash, error) { return bearer(r) }

var bearer = hashed(func(r *http.Request) (string, error) { return keytext.Bearer(r.Header["Authorization"]) })

// PathValue returns a key function for a wildcard of the route's pattern, such as
// "tenant" in "/tenants/{tenant}/". It is keyfunc.ErrMalformedKey if it is longer than 1 KiB,
// and keyfunc.ErrNoKey if it is empty. If the request has no pattern yet, because the middleware
// wraps the mux and not the handlers in it, the error is [keyfunc.ErrMisconfigured] too.
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

// Pattern is a key function for the route's pattern, such as "GET /items/{id}", as
// [http.ServeMux] found it: a key for each route, however many paths it has. It is
// [keyfunc.ErrMisconfigured] and keyfunc.ErrNoKey if there is none, because the middleware wraps the mux
// and not the handlers in it.
func Pattern(r *http.Request) (string, error) {
	if r.Pattern == "" {
		return "", fmt.Errorf("%w: %w: no route pattern before routing: wrap the handlers in the mux", keyfunc.ErrMisconfigured, keyfunc.ErrNoKey)
	}
	return r.Pattern, nil
}
