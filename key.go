package ratelimit

import (
	"reflect"
)

// canCompare reports whether the values that the key's interfaces hold can be compared.
func canCompare[K comparable](key K) bool { return reflect.ValueOf(&key).Elem().Comparable() }

// holdsInterface reports whether values of the type may fail to be comparable.
func holdsInterface(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Array:
		return holdsInterface(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsInterface(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}
