package inflight

import (
	"fmt"
	"reflect"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/keys"
)

// keyCheck rejects keys that a table could not find again.
type keyCheck[K comparable] struct {
	checkKeys bool // keys contain interfaces, so their values may not be comparable
}

// err returns an error if the key is invalid. The text omits the key: it may be a secret.
func (c keyCheck[K]) err(key K) error {
	if c.checkKeys && !keys.CanCompare(key) {
		return fmt.Errorf("inflight: %w: a %v that cannot be compared", ratelimit.ErrInvalidKey, reflect.TypeFor[K]())
	}
	if key != key {
		return fmt.Errorf("inflight: %w: a %v that does not equal itself", ratelimit.ErrInvalidKey, reflect.TypeFor[K]())
	}
	return nil
}
