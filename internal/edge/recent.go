package edge

import (
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit/internal/keys"
)

// maxRecent is the minimum number of values that a full Recent keeps.
const maxRecent = 16 << 10

// Recent keeps the values used last, in two generations. When the young generation is full it becomes the old one. The values
// of the previous old one are forgotten, unless they were used since. Reading takes no lock. Call Clear before the first use.
type Recent[K comparable, V any] struct {
	mu         sync.Mutex // held while a generation is replaced
	young, old atomic.Pointer[keys.Map[K, *atomic.Pointer[V]]]
}

// Clear forgets all values.
func (c *Recent[K, V]) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.young.Store(keys.NewMap[K, *atomic.Pointer[V]](maxRecent))
	c.old.Store(keys.NewMap[K, *atomic.Pointer[V]](maxRecent))
}

// Find returns a value.
func (c *Recent[K, V]) Find(k K) (v V, ok bool) {
	if e := c.young.Load().Lookup(k); e != nil {
		return *e.Value.Load(), true
	}
	if e := c.old.Load().Lookup(k); e != nil {
		v = *e.Value.Load()
		c.Add(k, v)
		return v, true
	}
	return v, false
}

// Add stores a value. It replaces the present one.
func (c *Recent[K, V]) Add(k K, v V) {
	young := c.young.Load()
	box := new(atomic.Pointer[V])
	box.Store(&v)
	if e, added := young.Add(k, box); !added {
		e.Value.Store(&v)
	}
	if young.Len() <= maxRecent {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young.Load() == young {
		c.old.Store(young)
		c.young.Store(keys.NewMap[K, *atomic.Pointer[V]](maxRecent))
	}
}
