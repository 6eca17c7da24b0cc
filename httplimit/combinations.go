package httplimit

import "net/http"

// withOptional returns the watcher with those of Flush and Hijack that the server's writer has. A method set is fixed when a
// program is compiled, so each needs a type.
func withOptional(x *watcher, flush, hijack bool) http.ResponseWriter {
	switch {
	case flush && hijack:
		return &struct {
			*watcher
			flusher
			hijacker
		}{x, flusher{x}, hijacker{x}}
	case flush:
		return &struct {
			*watcher
			flusher
		}{x, flusher{x}}
	case hijack:
		return &struct {
			*watcher
			hijacker
		}{x, hijacker{x}}
	}
	return x
}
