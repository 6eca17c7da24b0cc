package edge

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/clientaddr"
)

// Client determines the client's address from a request.
type Client[R Request] struct {
	Package string                          // the prefix of errors and log lines
	Peer    func(r R) clientaddr.Peer       // returns the other end of the request's connection
	Field   func(r R, name string) []string // returns the lines of a header field
	Lower   bool                            // whether Field takes names in lower case, as metadata has them, and not in canonical form
}

// spelled returns a field's name as Field takes it: in lower case if Lower is set.
func (c Client[R]) spelled(name string) string {
	if c.Lower {
		return strings.ToLower(name)
	}
	return name
}

var remote = clientaddr.Remote()

// RemoteIP implements httplimit.RemoteIP.
func (c Client[R]) RemoteIP(r R) (netip.Addr, error) { return remote.Find(c.Peer(r), nil) }

// ClientIP implements httplimit.ClientIP.
func (c Client[R]) ClientIP(o clientaddr.Options) (func(R) (netip.Addr, error), error) {
	f, err := clientaddr.New(o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Package, err)
	}
	name := c.spelled(f.Name())
	return func(r R) (netip.Addr, error) {
		return f.Find(c.Peer(r), func() []string { return c.Field(r, name) })
	}, nil
}

// Identity returns a text that distinguishes clients well enough to spread them. Clients
// may spoof it: with an invented identity, a client waits at least as long as before.
func (c Client[R]) Identity(r R) string {
	parts := []string{c.Peer(r).Addr.String()} // without the port, because it changes with each connection
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "Authorization"} {
		parts = append(parts, c.Field(r, c.spelled(name))...)
	}
	return strings.Join(parts, "\n")
}

// forwardingFields are proxies' fields for the client's address.
var forwardingFields = []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip"}

// sharedAddresses count as private, too, because carriers and clusters use them (RFC 6598).
var sharedAddresses = netip.MustParsePrefix("100.64.0.0/10")

// proxied returns the forwarding field of a proxy in a private network, or "". From a
// public address the field does not count, because the client may have written it itself.
func (c Client[R]) proxied(r R) string {
	peer := c.Peer(r).Addr
	if !peer.IsPrivate() && !peer.IsLoopback() && !peer.IsLinkLocalUnicast() && !sharedAddresses.Contains(peer) {
		return ""
	}
	for _, name := range forwardingFields {
		if len(c.Field(r, c.spelled(name))) > 0 {
			return name
		}
	}
	return ""
}

// PerIP returns a limiter with one budget for each RemoteIP. Behind a proxy all clients would share one budget.
// So the first request that came through a proxy is logged, with instead as a hint. The logger may be nil.
func (c Client[R]) PerIP(limit ratelimit.Limit, instead string, logger *slog.Logger) (ratelimit.Limiter[R], error) {
	var warned atomic.Bool
	return PerKey(limit, func(r R) (netip.Addr, error) {
		if !warned.Load() {
			if field := c.proxied(r); field != "" && warned.CompareAndSwap(false, true) {
				orDefault(logger).WarnContext(r.Context(), c.Package+": PerIP gives one budget to all clients of a proxy: use "+instead, "field", field)
			}
		}
		return c.RemoteIP(r)
	})
}
