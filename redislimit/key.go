package redislimit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// maxKey is the maximum length of a key stored as it is. A longer key's hash is stored in its place.
const maxKey = 200

// namespace is the common beginning of all Redis keys of a limiter. Its methods make these keys.
//
// A key is prefix, name, a separator and {key}. The braces are a hash tag, by which a cluster chooses the
// slot. A cluster reads the text between the first "{" and the next "}". So prefix and name have no braces,
// and an empty key, or one beginning with "}", is never put between them. The forms differ for all keys:
//
//	name:{key}         no Slot, no "}" in the key
//	name:{tag}:key     Slot's tag; or the hash of a key with a "}", or of ""
//	name#{hash}        no Slot, a long key
//	name#{tag}:hash    Slot, a long key
//
// The key for the sum of a key's open estimates has "+" in the colon's place, and "*" in the place of "#": see
// sumKeys. The key for the records of tentative bookings has "@" and "&" there. The beats' key is name%{beats}.
type namespace struct {
	begin string // prefix and name
	slot  func(key string) string
}

func newNamespace(prefix, name string, slot func(string) string) (namespace, error) {
	if prefix == "" {
		prefix = "ratelimit:"
	}
	for _, field := range []struct{ name, text string }{{"Prefix", prefix}, {"Name", name}} {
		if strings.ContainsAny(field.text, "{}") {
			return namespace{}, fmt.Errorf("redislimit: Options.%s is %q: braces would move keys to another slot, use Options.Slot",
				field.name, field.text)
		}
	}
	return namespace{begin: prefix + name, slot: slot}, nil
}

// key returns the Redis key for a key.
func (n namespace) key(key string) string {
	separator, whole := ":{", key
	if len(key) > maxKey {
		sum := sha256.Sum256([]byte(key))
		key, separator = hex.EncodeToString(sum[:]), "#{"
	}
	if n.slot == nil && key != "" && strings.IndexByte(key, '}') < 0 {
		return n.begin + separator + key + "}"
	}
	tag := key
	if n.slot != nil {
		tag = n.slot(whole) // the key itself, even if it is long
	}
	return n.begin + separator + safeTag(tag) + "}:" + key
}

// original returns a Redis key's original key. It reports false if
// the Redis key belongs to another limiter, or has only a key's hash.
func (n namespace) original(stored string) (string, bool) {
	rest, ours := strings.CutPrefix(stored, n.begin+":{")
	tag, key, closed := strings.Cut(rest, "}")
	if key == "" {
		key = tag
	} else {
		key = key[1:]
	}
	return key, ours && closed && n.key(key) == stored
}

// hashTag returns the part of a namespace's key by which the slot is chosen.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// safeTag returns the text, or its hash if the text is not a hash tag.
func safeTag(tag string) string {
	if tag != "" && len(tag) <= maxKey && strings.IndexByte(tag, '}') < 0 {
		return tag
	}
	sum := sha256.Sum256([]byte(tag))
	return hex.EncodeToString(sum[:8])
}
