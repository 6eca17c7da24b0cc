package httplimit

import "net/http"

// set is Header.Set without an allocation: the name is canonical, and the value's
// slice is given.
func set(h http.Header, name, value string, slot []string) {
	slot[0] = value
	h[name] = slot
}

// add adds a line to a list: middleware may be inside other middleware.
func add(h http.Header, name, value string, slot []string) {
	if lines := h[name]; len(lines) > 0 {
		h[name] = append(lines, value)
		return
	}
	set(h, name, value, slot)
}
