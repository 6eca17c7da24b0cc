package grpclimit

import (
	"net/http"

	"github.com/weir-go/ratelimit/httplimit"
)

// BearerToken is a key function for the hash of the token in "authorization: Bearer token".
// It is ErrNoKey if there is no such value or another scheme in it. Like [APIKey], it checks
// no token. It reads the value as [httplimit.BearerToken] does, and returns the same hash.
func BearerToken(c *Call) (Hash, error) {
	return httplimit.BearerToken(&http.Request{Header: http.Header{"Authorization": c.Metadata("authorization")}})
}
