package keys

import "reflect"

// CanCompare reports whether the values in the key's interfaces can be compared.
func CanCompare[K comparable](key K) bool { return reflect.ValueOf(&key).Elem().Comparable() }

// HoldInterfaces reports whether keys of type K may hold values that cannot be compared.
func HoldInterfaces[K comparable]() bool { return holdsInterface(reflect.TypeFor[K]()) }

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
