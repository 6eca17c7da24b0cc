package keys

import (
	"reflect"
	"strings"
	"unsafe"
)

// Cloner copies keys' text. A substring keeps the whole string in memory, so a key cut from a header would keep
// the whole header. A table may hold a key for long, so it clones the key first. The zero Cloner copies nothing.
//
// If K is a string type, it copies the string. If K is a struct or an array, it copies the strings in its fields and
// elements at any depth. It copies nothing behind an interface, a pointer or a channel.
type Cloner[K comparable] struct {
	strings []uintptr // the strings' offsets in a K
}

// NewCloner returns the Cloner for keys of type K.
func NewCloner[K comparable]() Cloner[K] {
	return Cloner[K]{stringsIn(nil, reflect.TypeFor[K](), 0)}
}

// stringsIn appends all strings' offsets in a value of type t at the given offset.
func stringsIn(found []uintptr, t reflect.Type, at uintptr) []uintptr {
	switch t.Kind() {
	case reflect.String:
		return append(found, at)
	case reflect.Array:
		for i := range t.Len() {
			found = stringsIn(found, t.Elem(), at+uintptr(i)*t.Elem().Size())
		}
	case reflect.Struct:
		for i := range t.NumField() {
			found = stringsIn(found, t.Field(i).Type, at+t.Field(i).Offset)
		}
	}
	return found
}

// Clone returns a key equal to k, without shared text.
func (c *Cloner[K]) Clone(k K) K {
	for _, at := range c.strings {
		s := stringIn(&k, at)
		*s = strings.Clone(*s)
	}
	return k
}

// Maker makes entries for keys, and copies the keys' text. If a key has one short string, the entry and its text are
// one allocation. A key in use then takes one cache line for hash and text, and the next one for its value.
type Maker[K comparable, V any] struct{ cloner Cloner[K] }

// NewMaker returns the Maker for keys of type K.
func NewMaker[K comparable, V any]() Maker[K, V] { return Maker[K, V]{NewCloner[K]()} }

// Clone returns a key equal to k, without shared text.
func (c *Maker[K, V]) Clone(k K) K { return c.cloner.Clone(k) }

// An entry is allocated with room for a text of shortText or longText bytes. If the key is a string and the value has
// 64 bytes, the allocations have 128 and 192 bytes, and the value fills the last cache line.
const shortText, longText = 40, 104

// withText is an entry with its key's text.
type withText[K comparable, V any, T any] struct {
	text T
	Entry[K, V]
}

// onlyKey pads an entry whose key has size zero. Such a key is the only one
// of its map and in constant use, so its value gets its own cache lines.
const onlyKey = 56

// New returns a new entry for a key.
func (c *Maker[K, V]) New(key K) *Entry[K, V] {
	if unsafe.Sizeof(key) == 0 {
		return &new(withText[K, V, [onlyKey]byte]).Entry
	}
	if len(c.cloner.strings) == 1 {
		at := c.cloner.strings[0]
		switch n := len(*stringIn(&key, at)); {
		case n == 0:
		case n <= shortText:
			x := new(withText[K, V, [shortText]byte])
			x.Key = key
			keepText(stringIn(&x.Key, at), x.text[:])
			return &x.Entry
		case n <= longText:
			x := new(withText[K, V, [longText]byte])
			x.Key = key
			keepText(stringIn(&x.Key, at), x.text[:])
			return &x.Entry
		}
	}
	return &Entry[K, V]{Key: c.cloner.Clone(key)}
}

// Replace gives another key to an entry from New that has left its Map. It does not allocate. If
// the key's text does not fit into the entry's allocation, Replace does nothing and returns
// false. The caller must guard its entries' keys by a lock, and must use no text of e elsewhere.
func (c *Maker[K, V]) Replace(e *Entry[K, V], key K) bool {
	if unsafe.Sizeof(key) == 0 {
		return false
	}
	if len(c.cloner.strings) == 0 {
		e.Key = key
		return true
	}
	if len(c.cloner.strings) > 1 {
		return false
	}
	// The length of the present text shows the least room for a text.
	at := c.cloner.strings[0]
	text, n := *stringIn(&e.Key, at), len(*stringIn(&key, at))
	room := 0
	switch old := len(text); {
	case old == 0 || old > longText:
	case old <= shortText:
		room = shortText
	default:
		room = longText
	}
	if n == 0 || n > room {
		return false
	}
	to := unsafe.Slice(unsafe.StringData(text), room)
	e.Key = key
	keepText(stringIn(&e.Key, at), to)
	return true
}

// stringIn returns the string at an offset of a key. The key must have a
// field of kind string at the offset. All string types have the same layout.
func stringIn[K comparable](key *K, at uintptr) *string {
	return (*string)(unsafe.Add(unsafe.Pointer(key), at))
}

// keepText copies a text to memory with room for it. Only Replace may write this memory again.
func keepText(s *string, to []byte) { *s = unsafe.String(&to[0], copy(to, *s)) }
