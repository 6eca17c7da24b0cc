package httplimit

import (
	"net/netip"
	"strings"
)

// lastForwardedFor is lastUntrusted for a line of X-Forwarded-For. It reads from the
// end, and no further than the client: a header of a megabyte costs no more than one
// of two entries. An empty entry is no address: to skip it would be to believe what
// stands before it, which is the client's word if a proxy had nothing to say.
func (c *clientIP) lastForwardedFor(line string) (client netip.Addr, found bool) {
	for more := true; more; {
		entry := line
		if i := strings.LastIndexByte(line, ','); i >= 0 {
			line, entry = line[:i], line[i+1:]
		} else {
			more = false
		}
		hop, ok := parseHop(strings.Trim(entry, " \t"))
		if !ok || !c.trusts(hop) {
			return hop, true
		}
	}
	return netip.Addr{}, false
}

// maxForwarded bounds a line of Forwarded, which has to be read from its beginning.
const maxForwarded = 16 << 10

// lastForwarded is lastUntrusted for a line of Forwarded (RFC 7239). Quoted strings
// can be told from what is around them only from the beginning, so it reads all of
// it and keeps the last entry that is no trusted proxy. Where the syntax is broken,
// nobody can say what is quoted: then all of the line is malformed.
func (c *clientIP) lastForwarded(line string) (client netip.Addr, found bool) {
	if len(line) > maxForwarded {
		return netip.Addr{}, true
	}
	for rest, more := line, true; more; {
		var hop netip.Addr
		var ok, wellFormed bool
		hop, ok, rest, more, wellFormed = forwardedElement(rest)
		if !wellFormed {
			return netip.Addr{}, true
		}
		if !ok || !c.trusts(hop) {
			client, found = hop, true
		}
	}
	return client, found
}

// forwardedElement reads one element, up to a comma or the end. The hop is ok if it
// has exactly one "for" and that is an address.
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

// forwardedPair reads one name=value, or nothing, and the white space around it. What
// is left begins with the separator. The value is without its quotes; if there are
// escapes in it, it keeps them: no address has any.
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

// quoted reads a quoted string whose opening quote has been read.
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
