package grpclimit

import "strings"

// peerAndCredentials tells clients apart well enough to spread them. It may be spoofed: a
// client that invents another identity waits as long as before, or longer.
func peerAndCredentials(c *Call) string {
	parts := []string{c.remote().Addr.String()} // without a port, which changes with each connection
	for _, key := range []string{"x-forwarded-for", "forwarded", "authorization"} {
		parts = append(parts, c.Metadata(key)...)
	}
	return strings.Join(parts, "\n")
}
