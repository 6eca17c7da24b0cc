package grpclimit

import (
	"strings"
	"time"
)

// spread adds the client's share of the jitter to a wait.
func (i *Interceptor) spread(c *Call, wait time.Duration) time.Duration {
	span := min(i.opts.Jitter, wait/10)
	if span <= 0 {
		return wait
	}
	return wait + min(i.seed.Share(i.opts.JitterBy(c), i.opts.Now(), wait, span), forever-wait)
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
