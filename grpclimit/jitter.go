package grpclimit

import (
	"strings"
	"time"
)

// spread adds the client's share of the jitter to a wait.
func (i *Interceptor) spread(c *Call, wait time.Duration) time.Duration {
	return wait + min(i.core.Share(c, wait), forever-wait)
}

// forever is the longest wait there is.
const forever = time.Duration(1<<63 - 1)

// peerAndCredentials tells clients apart well enough to spread them. It may be spoofed: a
// client that invents another identity waits as long as before, or longer.
func peerAndCredentials(c *Call) string {
	parts := []string{c.remote().Addr.String()} // without a port, which changes with each connection
	for _, key := range []string{"x-forwarded-for", "forwarded", "authorization"} {
		parts = append(parts, c.Metadata(key)...)
	}
	return strings.Join(parts, "\n")
}
