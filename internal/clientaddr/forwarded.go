package clientaddr

import (
	"net/netip"
	"strings"
)

// inForwardedFor finds the client in X-Forwarded-For's lines. It reads from the end, and stops at the
// client, so a header of a megabyte costs no more than one of two entries. An empty entry is not an
// address, and must not be skipped: if a proxy wrote nothing, the entry before it comes from the client.
func (f *Finder) inForwardedFor(lines []string) (netip.Addr, error) {
	after := 0
	for i := len(lines) - 1; i >= 0; i-- {
		line := lines[i]
		for more := true; more; after++ {
			var entry string
			line, entry, more = cutLast(line)
			if hop, ok := parseHop(strings.Trim(entry, " \t")); f.isClient(hop, ok, after) {
				return hop, nil
			}
		}
	}
	return netip.Addr{}, errNoClient
}

// cutLast removes a list's last entry, and returns it.
func cutLast(line string) (before, entry string, more bool) {
	if i := strings.LastIndexByte(line, ','); i >= 0 {
		return line[:i], line[i+1:], true
	}
	return "", line, false
}

// maxForwarded bounds the length of a line of Forwarded, because a line has to be read from its beginning.
const maxForwarded = 16 << 10

// inForwarded finds the client in the lines of Forwarded (RFC 7239). Quoted strings can be recognized only from a
// line's beginning. So each line is read twice: to count its elements, and to find the last one that can be the
// client's. Where the syntax is broken, the ends of quoted strings are not known, so the whole line is malformed.
func (f *Finder) inForwarded(lines []string) (netip.Addr, error) {
	after := 0 // elements in later lines
	for i := len(lines) - 1; i >= 0; i-- {
		n, ok := countElements(lines[i])
		if !ok {
			return netip.Addr{}, errBrokenSyntax
		}
		if client, found := f.lastClient(lines[i], n+after); found {
			return client, nil
		}
		after += n
	}
	return netip.Addr{}, errNoClient
}

// countElements counts a line's elements. ok is false if the line is malformed.
func countElements(line string) (n int, ok bool) {
	if len(line) > maxForwarded {
		return 0, false
	}
	for more := true; more; n++ {
		var wellFormed bool
		if _, _, line, more, wellFormed = forwardedElement(line); !wellFormed {
			return 0, false
		}
	}
	return n, true
}

// lastClient returns the last element of a well-formed line that can be
// the client's. left counts the elements in this line and later ones.
func (f *Finder) lastClient(line string, left int) (client netip.Addr, found bool) {
	for more := true; more; {
		var hop netip.Addr
		var ok bool
		hop, ok, line, more, _ = forwardedElement(line)
		if left--; f.isClient(hop, ok, left) {
			client, found = hop, true
		}
	}
	return client, found
}

// forwardedElement reads one element, up to a comma or the end. ok is true
// if the element has exactly one "for", with an address as its value.
func forwardedElement(s string) (hop netip.Addr, ok bool, rest string, more, wellFormed bool) {
	for seen := false; ; {
		name, value, after, valid := forwardedPair(s)
		if !valid {
			return netip.Addr{}, false, "", false, false
		}
		if strings.EqualFold(name, "for") {
			if seen {
				return netip.Addr{}, false, "", false, false
			}
			seen = true
			hop, ok = parseHop(value)
		}
		if after == "" {
			return hop, ok, "", false, true
		}
		s = after[1:]
		if after[0] == ',' {
			return hop, ok, s, true, true
		}
	}
}

// forwardedPair reads one name=value, or nothing, and the white space around it. rest begins
// with the separator. The value has no quotes. It keeps its escapes, because no address has any.
func forwardedPair(s string) (name, value, rest string, ok bool) {
	s = strings.TrimLeft(s, " \t")
	if s == "" || s[0] == ';' || s[0] == ',' {
		return "", "", s, true
	}
	name, s, ok = strings.Cut(s, "=")
	if !ok || name == "" || strings.ContainsAny(name, " \t\";,") {
		return "", "", "", false
	}
	if strings.HasPrefix(s, `"`) {
		value, s, ok = quoted(s[1:])
	} else {
		end := strings.IndexAny(s, " \t\";,")
		if end < 0 {
			end = len(s)
		}
		value, s = s[:end], s[end:]
	}
	s = strings.TrimLeft(s, " \t")
	return name, value, s, ok && (s == "" || s[0] == ';' || s[0] == ',')
}

// quoted reads a quoted string after its opening quote.
func quoted(s string) (value, rest string, ok bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i], s[i+1:], true
		}
	}
	return "", "", false
}
