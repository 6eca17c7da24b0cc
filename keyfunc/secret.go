package keyfunc

import (
	"fmt"
	"strings"
)

// APIKey returns a key function for the [Hash] of the secret that another function finds, such as grpclimit.Metadata("x-api-key"):
//
//	byKey := ratelimit.Map(limiter, keyfunc.APIKey(grpclimit.Metadata("x-api-key")))
//
// It does not check the secret. The same secret has the same hash over HTTP, where httplimit.APIKey is shorter. The errors are those of
// the function, but the secret may have any length: above 1 KiB, where Metadata and Header fail, it is hashed whole. An empty text is [ErrNoKey].
func APIKey[R any](key func(R) (string, error)) func(R) (Hash, error) {
	mustBeGiven(key != nil, "APIKey: key")
	return hashed(key, func(text string) (string, error) {
		if text == "" {
			return "", fmt.Errorf("%w: an empty text", ErrNoKey)
		}
		return text, nil
	})
}

// BearerToken is [APIKey] for the token in "Bearer token", the text that another function finds in Authorization, such as
// grpclimit.Metadata("authorization"). Use it for opaque tokens. Verifiers accept several spellings of a JWT, for example 16 that
// differ in the last character of the signature, and each would have a budget. So after authentication, use a verified claim as the key instead.
func BearerToken[R any](key func(R) (string, error)) func(R) (Hash, error) {
	mustBeGiven(key != nil, "BearerToken: key")
	return hashed(key, bearer)
}

// hashed returns a key function for the hash of the secret in another function's text.
func hashed[R any](key func(R) (string, error), secretIn func(text string) (string, error)) func(R) (Hash, error) {
	return func(r R) (Hash, error) {
		text, err := key(r)
		if long, ok := err.(tooLong); ok {
			text, err = long.Whole(), nil
		}
		if err == nil {
			text, err = secretIn(text)
		}
		if err != nil {
			return Hash{}, err
		}
		return HashOf(text), nil
	}
}

// tooLong is the error of package keytext about a text that is too long to be kept as a key. A hash of it is not.
type tooLong interface {
	error
	Whole() string
}

// bearer returns the token in "Bearer token".
func bearer(text string) (token string, err error) {
	text = strings.Trim(text, " \t")
	scheme := text
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		scheme, token = text[:i], strings.TrimLeft(text[i:], " ") // a tab remains, and is malformed
	}
	switch {
	case !strings.EqualFold(scheme, "Bearer"):
		return "", fmt.Errorf("%w: no bearer token in Authorization", ErrNoKey)
	case token == "":
		return "", fmt.Errorf("%w: empty bearer token", ErrNoKey)
	case strings.ContainsAny(token, " \t,"):
		return "", fmt.Errorf("%w: bearer token with spaces or commas", ErrMalformedKey)
	}
	return token, nil
}
