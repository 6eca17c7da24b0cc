package keyfunc

import (
	"fmt"
	"strings"
)

// APIKey returns a key function for a secret's [Hash]. The given function
// finds the secret, for example grpclimit.Metadata("x-api-key"):
//
//	byKey := ratelimit.Map(limiter, keyfunc.APIKey(grpclimit.Metadata("x-api-key")))
//
// APIKey does not check the secret. The same secret has the same hash over HTTP: there, httplimit.APIKey
// is shorter to write. It returns the given function's errors, with one exception: it also hashes
// secrets above 1 KiB, although Metadata and Header fail at them. An empty secret is [ErrNoKey].
func APIKey[R any](key func(R) (string, error)) func(R) (Hash, error) {
	mustBeGiven(key != nil, "APIKey: key")
	return hashed(key, func(text string) (string, error) {
		if text == "" {
			return "", fmt.Errorf("%w: an empty text", ErrNoKey)
		}
		return text, nil
	})
}

// BearerToken is [APIKey] for the token in a text "Bearer token", such as grpclimit.Metadata("authorization") returns.
// Use it for opaque tokens. Verifiers accept a JWT in several spellings, for example 16 with different last characters of
// the signature, and each would have its own budget. So after authentication, use a verified claim as the key instead.
func BearerToken[R any](key func(R) (string, error)) func(R) (Hash, error) {
	mustBeGiven(key != nil, "BearerToken: key")
	return hashed(key, bearer)
}

// hashed returns a key function for the hash of a secret. secretIn finds the secret in key's text.
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

// tooLong is implemented by package keytext's error about a text too long for a key. A hash of the text is short enough.
type tooLong interface {
	error
	Whole() string
}

// bearer returns the token of a text "Bearer token".
func bearer(text string) (token string, err error) {
	text = strings.Trim(text, " \t")
	scheme := text
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		scheme, token = text[:i], strings.TrimLeft(text[i:], " ") // a tab stays, and makes the token malformed
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
