package keys

import (
	"reflect"
	"strings"
	"unsafe"
)

// Cloner copies the text of keys. A string that is a part of a longer one keeps all of
// that one in memory, and a table may hold its keys for long, so a table clones a key
// before it stores it. The zero Cloner copies nothing.
//
// It copies the string if K is a string type, and each string in the fields and elements of
// K if K is a struct or an array, however deep. What an interface, a pointer or a channel
// refers to is left as it is.
type Cloner[K comparable] struct {
	strings []uintptr // where in a K the strings are
}

// NewCloner returns the Cloner for keys of type K.
func NewCloner[K comparable]() Cloner[K] {
	return Cloner[K]{stringsIn(nil, reflect.TypeFor[K](), 0)}
}

// stringsIn appends the offsets of all strings in a value of a type that is itself at
// an offset.
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

// Clone returns a key that equals k and shares no text with it.
func (c *Cloner[K]) Clone(k K) K {
	for _, at := range c.strings {
		// at is the offset of a field of kind string, and all string types have one layout.
		s := (*string)(unsafe.Add(unsafe.Pointer(&k), at))
		*s = strings.Clone(*s)
	}
	return k
}
