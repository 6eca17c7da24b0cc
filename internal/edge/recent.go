package edge

import (
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v4"
)

// maxRecent is how many values a Recent is sure to keep.
const maxRecent = 16 << 10

// Recent keeps the values that were used last, in two generations. If the young one is full
// it becomes the old one, whose values are forgotten unless they were used since. Reading takes
// no lock. Clear it before its first use.
type Recent[K comparable, V any] struct {
	mu         sync.Mutex // held to replace the generations
	young, old atomic.Pointer[xsync.Map[K, V]]
}

// Clear forgets all values.
func (c *Recent[K, V]) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.young.Store(xsync.NewMap[K, V]())
	c.old.Store(xsync.NewMap[K, V]())
}

// Find returns a value.
func (c *Recent[K, V]) Find(k K) (v V, ok bool) {
	if v, ok = c.young.Load().Load(k); ok {
		return v, true
	}
	if v, ok = c.old.Load().Load(k); ok {
		c.Add(k, v)
	}
	return v, ok
}

// Add keeps a value.
func (c *Recent[K, V]) Add(k K, v V) {
	young := c.young.Load()
	young.Store(k, v)
	if young.Size() <= maxRecent {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young.Load() == young {
		c.old.Store(young)
		c.young.Store(xsync.NewMap[K, V]())
	}
}
