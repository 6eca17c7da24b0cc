package httplimit

import (
	"net/http"
	"strings"
)

// peerAndCredentials tells clients apart well enough to spread them. It may be spoofed: a
// client that invents another identity waits as long as before, or longer.
func peerAndCredentials(r *http.Request) string {
	host := r.RemoteAddr
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i] // the port changes with each connection
	}
	parts := []string{host}
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "Authorization"} {
		parts = append(parts, r.Header[name]...)
	}
	return strings.Join(parts, "\n")
}
