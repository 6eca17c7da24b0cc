package httplimit

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weir-go/ratelimit/internal/keytext"
)

// item is a member of a list of a structured field (RFC 9651). It has a name and its Integer parameters.
type item struct {
	name   string
	params []param
	flags  []string // the parameters without a value
}

type param struct {
	key   string
	value int64
}

// get returns the parameter key.
func (it *item) get(key string) (int64, bool) {
	for _, p := range it.params {
		if p.key == key {
			return p.value, true
		}
	}
	return 0, false
}

// has reports whether a parameter is present without a value, or as the Boolean true.
func (it *item) has(key string) bool { return slices.Contains(it.flags, key) }

// flag sets or removes a Boolean parameter.
func (it *item) flag(key string, value bool) {
	it.flags = slices.DeleteFunc(it.flags, func(k string) bool { return k == key })
	if value {
		it.flags = append(it.flags, key)
	}
}

// set sets a parameter, or removes it if the value is not an Integer. Of several values, the last one counts.
func (it *item) set(key string, value *int64) {
	it.params = slices.DeleteFunc(it.params, func(p param) bool { return p.key == key })
	if value != nil {
		it.params = append(it.params, param{key, *value})
	}
}

// maxStructured is the maximum number of bytes read of a field.
const maxStructured = 16 << 10

// parseItems reads a list of Strings or Tokens. A malformed part makes the whole field malformed,
// as RFC 9651 requires, and such a field has no items. A line above 16 KiB is malformed, too.
func parseItems(lines []string) []item {
	s := strings.Trim(strings.Join(lines, ","), " \t")
	if s == "" || len(s) > maxStructured {
		return nil
	}
	var items []item
	for p := (parser{s}); ; {
		it, ok := p.item()
		if !ok {
			return nil
		}
		items = append(items, it)
		p.space()
		if p.s == "" {
			return items
		}
		if !p.accept(',') {
			return nil
		}
		p.space()
	}
}

// parseDictionary reads a Dictionary as an item's parameters without a name. ok is
// false if the Dictionary is malformed or contains inner lists. No dialect uses them.
func parseDictionary(lines []string) (it item, ok bool) {
	s := strings.Trim(strings.Join(lines, ","), " \t")
	if s == "" || len(s) > maxStructured {
		return it, false
	}
	for p := (parser{s}); ; {
		if !p.parameter(&it) {
			return it, false
		}
		if !p.parameters(new(item)) {
			return it, false
		}
		p.space()
		if p.s == "" {
			return it, true
		}
		if !p.accept(',') {
			return it, false
		}
		p.space()
	}
}

// policyNames returns the policies' names in the lines.
func policyNames(lines []string) []string {
	var names []string
	for _, it := range parseItems(lines) {
		names = append(names, it.name)
	}
	return names
}

// parser reads structured fields from the beginning of s.
type parser struct{ s string }

func (p *parser) space() { p.s = strings.TrimLeft(p.s, " \t") }

// accept reads the next character if it is c.
func (p *parser) accept(c byte) bool {
	if p.s == "" || p.s[0] != c {
		return false
	}
	p.s = p.s[1:]
	return true
}

// while reads the next characters as long as in is true for them.
func (p *parser) while(in func(c byte) bool) string {
	i := 0
	for i < len(p.s) && in(p.s[i]) {
		i++
	}
	read := p.s[:i]
	p.s = p.s[i:]
	return read
}

func (p *parser) item() (it item, ok bool) {
	if it.name, _, ok = p.value(); !ok || it.name == "" {
		return it, false
	}
	return it, p.parameters(&it)
}

// parameters reads an item's parameters.
func (p *parser) parameters(it *item) bool {
	for p.accept(';') {
		p.space()
		if !p.parameter(it) {
			return false
		}
	}
	return true
}

// parameter reads a key and its value. A parameter without a value is true.
func (p *parser) parameter(it *item) bool {
	key := p.while(isKeyChar)
	if key == "" || !isLower(key[0]) && key[0] != '*' {
		return false
	}
	if !p.accept('=') {
		it.set(key, nil)
		it.flag(key, true)
		return true
	}
	yes := strings.HasPrefix(p.s, "?1")
	_, n, ok := p.value()
	if ok {
		it.set(key, n)
		it.flag(key, yes)
	}
	return ok
}

// value reads a bare item. It returns the text of a String or Token, and the number of an Integer.
func (p *parser) value() (text string, n *int64, ok bool) {
	if p.s == "" {
		return "", nil, false
	}
	switch c := p.s[0]; {
	case c == '"':
		text, ok = p.text()
		return text, nil, ok
	case c == '-' || isDigit(c):
		return p.number()
	case c == '*' || isLetter(c):
		return p.while(isTokenChar), nil, true
	case c == ':':
		return "", nil, p.bytes()
	case c == '?':
		p.s = p.s[1:]
		return "", nil, p.accept('0') || p.accept('1')
	case c == '@': // a Date, never a limit's figure
		p.s = p.s[1:]
		_, n, _ = p.number()
		return "", nil, n != nil
	case c == '%':
		p.s = p.s[1:]
		return "", nil, p.display()
	}
	return "", nil, false
}

// text reads a String.
func (p *parser) text() (string, bool) {
	var b strings.Builder
	for i := 1; i < len(p.s); i++ {
		switch c := p.s[i]; {
		case c == '"':
			p.s = p.s[i+1:]
			return b.String(), true
		case c == '\\':
			if i++; i == len(p.s) || p.s[i] != '"' && p.s[i] != '\\' {
				return "", false
			}
			b.WriteByte(p.s[i])
		case c < ' ' || c > '~':
			return "", false
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}

// number reads an Integer of up to 15 digits, or a Decimal of up to
// 12 digits and 3 decimals. No limit uses a Decimal as a figure.
func (p *parser) number() (string, *int64, bool) {
	negative := p.accept('-')
	whole := p.while(isDigit)
	if p.accept('.') {
		fraction := p.while(isDigit)
		return "", nil, whole != "" && len(whole) <= 12 && fraction != "" && len(fraction) <= 3
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || len(whole) > 15 {
		return "", nil, false
	}
	if negative {
		n = -n
	}
	return "", &n, true
}

// display reads a Display String after its first character. It is UTF-8 text,
// with each byte outside printable ASCII written as %xx, in lower case.
func (p *parser) display() bool {
	if !p.accept('"') {
		return false
	}
	var b []byte
	for i := 0; i < len(p.s); i++ {
		switch c := p.s[i]; {
		case c == '"':
			p.s = p.s[i+1:]
			return utf8.Valid(b)
		case c == '%':
			if i+2 >= len(p.s) || strings.ToLower(p.s[i+1:i+3]) != p.s[i+1:i+3] {
				return false
			}
			decoded, err := hex.DecodeString(p.s[i+1 : i+3])
			if err != nil {
				return false
			}
			b = append(b, decoded...)
			i += 2
		case c < ' ' || c > '~':
			return false
		default:
			b = append(b, c)
		}
	}
	return false
}

// bytes reads a Byte Sequence. The padding may be missing.
func (p *parser) bytes() bool {
	end := strings.IndexByte(p.s[1:], ':')
	if end < 0 {
		return false
	}
	_, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(p.s[1:end+1], "="))
	p.s = p.s[end+2:]
	return err == nil
}

func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isLower(c byte) bool  { return 'a' <= c && c <= 'z' }
func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isKeyChar(c byte) bool {
	return isLower(c) || isDigit(c) || c == '_' || c == '-' || c == '.' || c == '*'
}

func isTokenChar(c byte) bool { return keytext.IsTokenChar(c) || c == ':' || c == '/' }
