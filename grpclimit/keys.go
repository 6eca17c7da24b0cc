package grpclimit

import (
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Metadata returns a key function for the value under a metadata key that a proxy or another interceptor sets or
// checks: clients can send any value. Of a [Client]'s call it is the value that the client sends. The error is [keyfunc.ErrNoKey] without
// a value, and [keyfunc.ErrMalformedKey] above 1 KiB or with several values. For secrets use [keyfunc.APIKey] and
// [keyfunc.BearerToken] of it.
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

// single returns the value under a key in lower case, if it is the only
// one. The value of a binary key is bytes, and white space in it is kept.
func (c *Call) single(key string) (string, error) {
	if strings.HasSuffix(key, "-bin") {
		return keytext.Raw(c.values(key), key)
	}
	return keytext.Single(c.values(key), key)
}

// Method is a key function for the full method, "/package.Service/Method". The error is [keyfunc.ErrMalformedKey]
// above 1 KiB.
func Method(c *Call) (string, error) {
	if c.FullMethod == "" {
		return "", fmt.Errorf("%w: no method", keyfunc.ErrNoKey)
	}
	return keytext.Short(c.FullMethod, "method")
}

// Service is a key function for the service, "package.Service". The error is [keyfunc.ErrMalformedKey] above 1 KiB or
// without a service.
func Service(c *Call) (string, error) {
	service := c.service()
	if service == "" {
		return "", fmt.Errorf("%w: the method has no service", keyfunc.ErrMalformedKey)
	}
	return keytext.Short(service, "service")
}
