package grpclimit

import (
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
)

// PolicyRequest returns a call as a request of package policy. Its attributes are method
// (POST), host, path and route (both are the full method), ip, and header:NAME for a
// metadata key with exactly one value. Attributes in more have precedence. More may be nil:
//
//	limiter := ratelimit.Map(policies, func(c *grpclimit.Call) (policy.Request, error) {
//		return grpclimit.PolicyRequest(c, policy.Attributes{"user": userOf(c)}), nil
//	})
func PolicyRequest(c *Call, more interface {
	Attribute(name string) (value string, ok bool)
}) interface {
	Attribute(name string) (value string, ok bool)
} {
	return &attributes{c, more}
}

type attributes struct {
	call *Call
	more interface {
		Attribute(name string) (value string, ok bool)
	}
}

func (a *attributes) Attribute(name string) (string, bool) {
	if a.more != nil {
		if v, ok := a.more.Attribute(name); ok {
			return v, true
		}
	}
	switch name {
	case "method":
		return "POST", true
	case "host":
		host, ok := a.metadata(":authority")
		return keytext.Host(host), ok
	case "path", "route":
		return a.call.FullMethod, a.call.FullMethod != ""
	case "ip":
		addr, err := RemoteIP(a.call)
		return addr.String(), err == nil
	}
	if key, ok := strings.CutPrefix(name, "header:"); ok {
		return a.metadata(strings.ToLower(key))
	}
	return "", false
}

// metadata returns a key's only value. If a client sends a key twice, there
// is no value, because different parts of a program could use different ones.
func (a *attributes) metadata(key string) (string, bool) {
	v, err := a.call.single(key)
	return v, err == nil
}
