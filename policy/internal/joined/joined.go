// Package joined joins a key's values to one text, splits such a text, and hashes it, for packages policy, admin and audit.
package joined

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// Key returns one text for several values. Different lists of values
// have different texts. The text of a single value is the value.
func Key(values []string) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return values[0]
	}
	var b strings.Builder
	for _, v := range values {
		b.WriteString(strconv.Itoa(len(v)))
		b.WriteByte(':')
		b.WriteString(v)
	}
	return b.String()
}

// Values returns a key's n values, or fewer if the key does not consist of n values.
func Values(key string, n int) (values []string) {
	if n == 0 {
		return nil
	}
	if n == 1 {
		return []string{key}
	}
	for range n {
		length, rest, _ := strings.Cut(key, ":")
		bytes, err := strconv.Atoi(length)
		if err != nil || bytes < 0 || bytes > len(rest) {
			return values
		}
		values, key = append(values, rest[:bytes]), rest[bytes:]
	}
	return values
}

// Hash returns the first 32 hex digits of the HMAC-SHA256 of a text. It is a key's code on the page and in the audit.
func Hash(hashKey []byte, text string) string {
	h := hmac.New(sha256.New, hashKey)
	h.Write([]byte(text))
	return hex.EncodeToString(h.Sum(nil))[:32]
}
