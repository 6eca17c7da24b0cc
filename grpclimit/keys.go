package grpclimit

import (
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Metadata returns a key function for a metadata key's value. A proxy or another interceptor must
// set or check it, because clients can send any value. In a [Client] it returns the value to send.
// Without a value the error is [keyfunc.ErrNoKey]. With several values, or above 1 KiB, it is
// [keyfunc.ErrMalformedKey]. For a secret, wrap it in [keyfunc.APIKey] or [keyfunc.BearerToken].
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

// single returns a key's value if there is exactly one. The key must be in
// lower case. The value of a binary key is bytes, so white space in it is kept.
func (c *Call) single(key string) (string, error) {
	if strings.HasSuffix(key, "-bin") {
		return keytext.Raw(c.values(key), key)
	}
	return keytext.Single(c.values(key), key)
}

// Method is a key function for the full method, "/package.Service/Method".
// Above 1 KiB the error is [keyfunc.ErrMalformedKey].
func Method(c *Call) (string, error) {
	if c.FullMethod == "" {
		return "", fmt.Errorf("%w: no method", keyfunc.ErrNoKey)
	}
	return keytext.Short(c.FullMethod, "method")
}

// Service is a key function for the service, "package.Service". Above
// 1 KiB, or without a service, the error is [keyfunc.ErrMalformedKey].
func Service(c *Call) (string, error) {
	service := c.service()
	if service == "" {
		return "", fmt.Errorf("%w: the method has no service", keyfunc.ErrMalformedKey)
	}
	return keytext.Short(service, "service")
}
