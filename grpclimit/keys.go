package grpclimit

import (
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/keytext"
)

// A key function returns the key of a call, by which a limit counts. The functions of
// this package have the type that [ratelimit.By] and [ratelimit.Map] take. None returns
// a key that means "no key": if the key is missing, it returns an error, or leaves the
// layer out if it is wrapped in [Optional].
//
// The errors are httplimit's own, so that a key function of yours can serve both.
var (
	// ErrNoKey says that a call lacks its key: metadata are missing, for example. It is
	// [httplimit.ErrNoKey].
	ErrNoKey = httplimit.ErrNoKey

	// ErrMalformedKey says that a call has a key in a form that no honest client or proxy
	// sends: an address that cannot be parsed, two values instead of one, or a text above
	// 1 KiB, which a limiter would have to keep. It is [httplimit.ErrMalformedKey].
	ErrMalformedKey = httplimit.ErrMalformedKey

	// ErrMisconfigured says that a key function cannot work because of how the server is
	// built, whatever the client sends: it asks for a verified certificate, and the server
	// verifies none. It is answered with INTERNAL. Such an error wraps ErrNoKey as well, and
	// [Optional] does not skip it. It is [httplimit.ErrMisconfigured].
	ErrMisconfigured = httplimit.ErrMisconfigured
)

// Hash is the SHA-256 of a secret: see [httplimit.Hash].
type Hash = httplimit.Hash

// HashOf returns the Hash of a secret, to look plans up in [ratelimit.Options].LimitFor.
func HashOf(secret string) Hash { return httplimit.HashOf(secret) }

// Pair is two keys as one: see [httplimit.Pair].
type Pair[A, B comparable] = httplimit.Pair[A, B]

// Join returns a key function for both keys together: each login name from each
// address. An error of either is its error, a skipped layer included. For three,
// Join(a, Join(b, c)).
func Join[A, B comparable](a func(*Call) (A, error), b func(*Call) (B, error)) func(*Call) (Pair[A, B], error) {
	return func(c *Call) (k Pair[A, B], err error) {
		if k.A, err = a(c); err == nil {
			k.B, err = b(c)
		}
		return k, err
	}
}

// Optional leaves the layer out ([ratelimit.SkipLayer]) for calls that have no key. Those
// calls are not limited by it, so let another layer count them. Without another layer,
// with [ratelimit.Map] or in a stack whose layers are all optional, a call without a key is
// not limited at all. A malformed key is still an error.
func Optional[K any](key func(*Call) (K, error)) func(*Call) (K, error) {
	return edge.Optional(key)
}

// Unless returns a key function for calls without the key of known, and leaves the layer out for
// all others: see [httplimit.Unless].
func Unless[A, K any](known func(*Call) (A, error), key func(*Call) (K, error)) func(*Call) (K, error) {
	return edge.Unless(known, key)
}

// Metadata returns a key function for the value that the client has sent under a key. It
// is ErrNoKey if the value is missing or empty, and ErrMalformedKey if it is longer than
// 1 KiB, or if there are several, since another program may read another one of them.
// White space around the value is no part of it, except in binary metadata, whose keys end
// in "-bin". Clients send what they like: use it if a proxy or another interceptor has set
// or checked the value, or beside a limit by address. For secrets, use [APIKey].
func Metadata(key string) func(*Call) (string, error) {
	key = strings.ToLower(key)
	return func(c *Call) (string, error) {
		value, err := c.single(key)
		if err != nil {
			return "", err
		}
		return keytext.Short(value, key)
	}
}

// single returns the only value under a key in lower case. The value of a binary key is
// bytes, of which none is white space.
func (c *Call) single(key string) (string, error) {
	if strings.HasSuffix(key, "-bin") {
		return keytext.Raw(c.Metadata(key), key)
	}
	return keytext.Single(c.Metadata(key), key)
}

// APIKey returns a key function for the hash of a secret that the client has sent under a
// key, such as x-api-key. The errors are those of [Metadata], but it may be of any length.
// Whether the secret is valid is not checked: put it behind what does, or beside a limit by
// address. For authorization, whose value can be written in several ways, use
// [BearerToken].
//
// It is the hash that [httplimit.APIKey] returns for the same secret.
func APIKey(key string) func(*Call) (Hash, error) {
	key = strings.ToLower(key)
	return func(c *Call) (Hash, error) {
		secret, err := c.single(key)
		if err != nil {
			return Hash{}, err
		}
		return HashOf(secret), nil
	}
}

// BearerToken is a key function for the hash of the token in "authorization: Bearer token".
// It is ErrNoKey if there is no such value or another scheme in it. Like [APIKey], it checks
// no token. It is the hash that [httplimit.BearerToken] returns for the same token.
func BearerToken(c *Call) (Hash, error) {
	token, err := keytext.Bearer(c.Metadata("authorization"))
	if err != nil {
		return Hash{}, err
	}
	return HashOf(token), nil
}

// Method is a key function for the full method: "/package.Service/Method". It is
// ErrMalformedKey if it is longer than 1 KiB: with [grpc.UnknownServiceHandler], clients can
// call what they like.
func Method(c *Call) (string, error) {
	if c.FullMethod == "" {
		return "", fmt.Errorf("%w: no method", ErrNoKey)
	}
	return keytext.Short(c.FullMethod, "method")
}

// Service is a key function for the service's full name: "package.Service". It is
// ErrMalformedKey if the method is not of the form "/package.Service/Method", or the name is
// longer than 1 KiB.
func Service(c *Call) (string, error) {
	service := c.Service()
	if service == "" {
		return "", fmt.Errorf("%w: the method has no service", ErrMalformedKey)
	}
	return keytext.Short(service, "service")
}
