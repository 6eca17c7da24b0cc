package grpclimit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/grpclimit"
)

// fixed are attributes as a map.
type fixed map[string]string

func (f fixed) Attribute(name string) (string, bool) { v, ok := f[name]; return v, ok }

func TestACallHasTheAttributesOfItsHTTPRequest(t *testing.T) {
	c := grpclimit.NewCall(incoming(tcp("[2001:db8::1]:80"), ":authority", "API.Example.:443", "x-tenant", "acme", "twice", "a", "twice", "b", "empty", ""),
		"/pkg.Service/Method", nil)
	r := grpclimit.PolicyRequest(c, fixed{"user": "ann", "header:x-region": "eu"})
	for name, want := range map[string]string{
		"method": "POST", "host": "api.example", "path": "/pkg.Service/Method", "route": "/pkg.Service/Method", "ip": "2001:db8::",
		"header:X-Tenant": "acme", "user": "ann", "header:x-region": "eu",
	} {
		got, ok := r.Attribute(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{"plan", "header:missing", "header:twice", "header:empty", ""} {
		_, ok := r.Attribute(name)
		assert.False(t, ok, name)
	}
	bare := grpclimit.PolicyRequest(new(grpclimit.Call), nil)
	for _, name := range []string{"host", "path", "route", "ip", "user"} {
		_, ok := bare.Attribute(name)
		assert.False(t, ok, name)
	}
}
