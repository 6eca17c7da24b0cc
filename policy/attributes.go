package policy

import (
	"fmt"
	"slices"
	"strings"
)

// [HTTP] sets these attributes, and rules give them a meaning.
const (
	attrMethod = "method"
	attrHost   = "host"
	attrPath   = "path"
	attrRoute  = "route"
	attrIP     = "ip"
	attrPlan   = "plan"
	attrHeader = "header:"
	attrQuery  = "query:"
	attrCookie = "cookie:"

	attrWildcard = "wildcard:" // a wildcard of the rule's own routes
)

// sentByClient reports whether a client chooses an attribute's value,
// because [HTTP] reads it from a field, a query, a cookie or the path.
func sentByClient(attribute string) bool {
	return strings.HasPrefix(attribute, attrHeader) || strings.HasPrefix(attribute, attrQuery) || strings.HasPrefix(attribute, attrCookie) || strings.HasPrefix(attribute, attrWildcard) ||
		slices.Contains([]string{attrMethod, attrHost, attrPath, attrRoute, attrIP}, attribute)
}

// writtenByClient reports whether any client can give an attribute any value, because it is in a field, a query or a cookie.
func writtenByClient(name string) bool {
	return strings.HasPrefix(name, attrHeader) || strings.HasPrefix(name, attrQuery) || strings.HasPrefix(name, attrCookie)
}

// credentialWords are the last words of header fields with credentials, for example X-API-Key and Authorization.
var credentialWords = []string{
	"apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "jwt", "key", "passwd", "password", "secret", "session", "sessionid", "signature", "token",
}

// isSecret reports whether an attribute's value may be a secret: a query, a cookie, or a header field with credentials.
func isSecret(attribute string) bool {
	field, isHeader := strings.CutPrefix(attribute, attrHeader)
	last := strings.ToLower(field[strings.LastIndexAny(field, "-_.")+1:])
	return strings.HasPrefix(attribute, attrQuery) || strings.HasPrefix(attribute, attrCookie) ||
		isHeader && (slices.Contains(credentialWords, last) || strings.EqualFold(field, "X-Session-ID"))
}

// sameAttribute reports whether two names mean one attribute. The name of a header field may be in any case.
func sameAttribute(a, b string) bool {
	return a == b || strings.HasPrefix(a, attrHeader) && strings.HasPrefix(b, attrHeader) && strings.EqualFold(a, b)
}

// checkAttribute returns an error if a name contains characters other than letters, digits and a few signs.
func checkAttribute(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("an attribute's name of %d bytes, want 1 to %d", len(name), maxName)
	}
	if name == attrHeader || name == attrQuery || name == attrCookie || name == attrWildcard {
		return fmt.Errorf("the attribute %q has no name behind the colon, so no request has it", name)
	}
	for i, c := range name {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_'
		inner := '0' <= c && c <= '9' || strings.ContainsRune("-.:", c)
		if !letter && (i == 0 || !inner) {
			err := fmt.Errorf("the attribute %q has %q, want a letter, then letters, digits, _ - : and dots", name, c)
			if better := withoutSpaces(name); c == ' ' && better != name && checkAttribute(better) == nil {
				err = fmt.Errorf("%w; %q, maybe", err, better)
			}
			return err
		}
	}
	return nil
}

// withoutSpaces returns a name as its author may have meant it:
// without spaces around its parts, and with a dash for spaces in them.
func withoutSpaces(name string) string {
	parts := strings.Split(name, ":")
	for i, part := range parts {
		parts[i] = strings.Join(strings.Fields(part), "-")
	}
	return strings.Join(parts, ":")
}
