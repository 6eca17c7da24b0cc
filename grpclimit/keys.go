package grpclimit

import (
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Metadata returns a key function for the value that the client has sent under a key. It
// is keyfunc.ErrNoKey if the value is missing or empty, and keyfunc.ErrMalformedKey if it is longer than
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
		return keytext.Raw(c.values(key), key)
	}
	return keytext.Single(c.values(key), key)
}

// APIKey returns a key function for the hash of a secret that the client has sent under a
// key, such as x-api-key. The errors are those of [Metadata], but it may be of any length.
// Whether the secret is valid is not checked: put it behind what does, or beside a limit by
// address. For authorization, whose value can be written in several ways, use
// [BearerToken].
//
// It is the hash that [httplimit.APIKey] returns for the same secret.
func APIKey(key string) func(*Call) (keyfunc.Hash, error) {
	key = strings.ToLower(key)
	return func(c *Call) (keyfunc.Hash, error) {
		secret, err := c.single(key)
		if err != nil {
			return keyfunc.Hash{}, err
		}
		return keyfunc.HashOf(secret), nil
	}
}

// BearerToken is a key function for the hash of the token in "authorization: Bearer token".
// It is keyfunc.ErrNoKey if there is no such value or another scheme in it. Like [APIKey], it checks
// no token. It is the hash that [httplimit.BearerToken] returns for the same token.
func BearerToken(c *Call) (keyfunc.Hash, error) {
	token, err := keytext.Bearer(c.values("authorization"))
	if err != nil {
		return keyfunc.Hash{}, err
	}
	return keyfunc.HashOf(token), nil
}

// Method is a key function for the full method: "/package.Service/Method". It is
// keyfunc.ErrMalformedKey if it is longer than 1 KiB: with [grpc.UnknownServiceHandler], clients can
// call what they like.
func Method(c *Call) (string, error) {
	if c.FullMethod == "" {
		return "", fmt.Errorf("%w: no method", keyfunc.ErrNoKey)
	}
	return keytext.Short(c.FullMethod, "method")
}

// Service is a key function for the service's full name: "package.Service". It is
// keyfunc.ErrMalformedKey if the method is not of the form "/package.Service/Method", or the name is
// longer than 1 KiB.
func Service(c *Call) (string, error) {
	service := c.service()
	if service == "" {
		return "", fmt.Errorf("%w: the method has no service", keyfunc.ErrMalformedKey)
	}
	return keytext.Short(service, "service")
}
