package edge

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
)

// Proxied warns once of requests that come through a proxy, where a limit by the connection's address puts all clients of the proxy into
// one budget. The zero Proxied writes to slog's default Logger. It is safe for concurrent use.
type Proxied struct {
	Package string // with whose name the line begins
	Instead string // what to use there
	Logger  *slog.Logger

	done atomic.Bool
}

// ForwardingFields are the fields in which proxies name their client.
var ForwardingFields = []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip"}

// sharedAddresses are private as well: carriers and clusters use them (RFC 6598).
var sharedAddresses = netip.MustParsePrefix("100.64.0.0/10")

// Note looks at the peer of a request and at its fields. A client with a public address may send such a field itself; from a private
// address it is a proxy's.
func (p *Proxied) Note(ctx context.Context, peer netip.Addr, has func(field string) bool) {
	if p.done.Load() || !peer.IsPrivate() && !peer.IsLoopback() && !peer.IsLinkLocalUnicast() && !sharedAddresses.Contains(peer) {
		return
	}
	for _, field := range ForwardingFields {
		if !has(field) {
			continue
		}
		if p.done.CompareAndSwap(false, true) {
			to := p.Logger
			if to == nil {
				to = slog.Default()
			}
			to.Log(ctx, slog.LevelWarn, p.Package+": PerIP gives one budget to all clients of a proxy: use "+p.Instead, "field", field)
		}
		return
	}
}
