package grpclimit

import (
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
)

// Attributes are what rules know of a call. Package policy calls it a Request: a value of
// this type is a policy.Request.
type Attributes interface {
	Attribute(name string) (value string, ok bool)
}

// PolicyRequest returns the attributes of a call, for limits by the rules of package
// policy, and more, which win where both have a name: the user, the plan, or the address
// that a trusted proxy has told. more may be nil.
//
//	limiter := ratelimit.Map(policies, func(c *grpclimit.Call) (policy.Request, error) {
//		return grpclimit.PolicyRequest(c, policy.Attributes{"user": userOf(c)}), nil
//	})
//
// The attributes are those of the HTTP/2 request that a call is, so that one rule can hold
// for both:
//
//   - method, which is POST; host (of :authority, in lower case, without a port); path
//     and route: the full method, "/package.Service/Method". A rule's route may be
//     "/package.Service/", for all methods of a service;
//   - ip: the address of the connection's other end, as [RemoteIP] has it;
//   - header:NAME: a metadata value that is there exactly once and is not empty.
func PolicyRequest(c *Call, more Attributes) Attributes { return &attributes{c, more} }

type attributes struct {
	call *Call
	more Attributes
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

// metadata returns a key's only value. A client that sends a key twice has none: else
// different parts of a program could believe different ones.
func (a *attributes) metadata(key string) (string, bool) {
	v, err := a.call.single(key)
	return v, err == nil
}
