package inflight

import (
	"fmt"
	"reflect"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/keys"
)

// keyCheck finds the keys that no table could find again.
type keyCheck[K comparable] struct {
	checkKeys bool // keys hold interfaces, and so values that may not be comparable
}

// err returns an error if the key is invalid. Its text does not hold the key, which may be
// a secret.
func (c keyCheck[K]) err(key K) error {
	if c.checkKeys && !keys.CanCompare(key) {
		return fmt.Errorf("inflight: %w: a %v that cannot be compared", ratelimit.ErrInvalidKey, reflect.TypeFor[K]())
	}
	if key != key {
		return fmt.Errorf("inflight: %w: a %v that does not equal itself", ratelimit.ErrInvalidKey, reflect.TypeFor[K]())
	}
	return nil
}
