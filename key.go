package ratelimit

import (
	"fmt"
	"reflect"
)

// check returns what is wrong with the key or the cost whatever the limit.
func (l *Keyed[K]) check(key K, cost int) error {
	if cost < 0 {
		return fmt.Errorf("%w: %d", ErrNegativeCost, cost)
	}
	if l.odd && !canCompare(key) {
		return fmt.Errorf("%w: %T cannot be compared", ErrInvalidKey, key)
	}
	if key != key {
		return fmt.Errorf("%w: %v does not equal itself", ErrInvalidKey, key)
	}
	return nil
}

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
