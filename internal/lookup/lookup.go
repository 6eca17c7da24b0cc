// Package lookup shares the calls to a user's function by key, for example to LimitFor. Concurrent
// callers with one key share one call, and its result is kept until it is dropped or replaced.
package lookup

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit/internal/keys"
)

// Calls shares calls by key. Make one with [New]. It is safe for concurrent use. It holds no lock during a call.
type Calls[K, V comparable] struct {
	keep   int64
	kept   atomic.Int64 // results, in all shards
	seed   maphash.Seed
	cloner keys.Cloner[K]
	shards []shard[K, V]
}

type shard[K, V comparable] struct {
	mu    sync.Mutex // guards the map and the calls in it, but not the results of calls that have ended
	calls map[K]*call[V]
}

// call is a call under way, or its result.
type call[V comparable] struct {
	version uint64
	value   V
	err     error
	ended   bool          // whether value and err are set
	over    bool          // whether the call has ended, or the function has panicked
	done    chan struct{} // closed when the call is over; nil while nobody else waits for it
}

// New returns a Calls that keeps up to keep results. If keep is 0, only concurrent callers share a result.
func New[K, V comparable](keep int) *Calls[K, V] {
	n := 16
	if keep > 0 && keep < 1024 {
		n = 1
	}
	c := &Calls[K, V]{keep: int64(keep), seed: maphash.MakeSeed(), cloner: keys.NewCloner[K](), shards: make([]shard[K, V], n)}
	for i := range c.shards {
		c.shards[i].calls = map[K]*call[V]{}
	}
	return c
}

func (c *Calls[K, V]) shard(key K) *shard[K, V] {
	if len(c.shards) == 1 {
		return &c.shards[0]
	}
	return &c.shards[maphash.Comparable(c.seed, key)%uint64(len(c.shards))]
}

// Find returns the kept result for a key, if its version is at least the given one.
func (c *Calls[K, V]) Find(key K, version uint64) (v V, ok bool) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.calls[key]; x != nil && x.ended && x.version >= version {
		return x.value, true
	}
	return v, false
}

// Get returns the result of f for a key, of at least the given version. It returns the kept result, waits
// for a call under way, or calls f. A call's error is returned to its callers, but not kept. If a call
// panics, its caller panics. The callers that waited for it then call f themselves, one after another.
//
// known finds values that have left the Calls for another place. If it is
// not nil, it is called before f, and its result is used if it has one.
func (c *Calls[K, V]) Get(key K, version uint64, known func() (V, bool), f func(K) (V, error)) (V, error) {
	s := c.shard(key)
	for {
		s.mu.Lock()
		x := s.calls[key]
		switch {
		case x == nil || x.version < version:
			if x != nil {
				c.removeLocked(s, key, x)
			}
			x = &call[V]{version: version}
			own := key
			if c.keep > 0 {
				own = c.cloner.Clone(key) // the key may be a part of a longer text
			}
			s.calls[own] = x
			s.mu.Unlock()
			return c.run(s, key, x, known, f)
		case x.ended:
			s.mu.Unlock()
			return x.value, x.err
		}
		if x.done == nil {
			x.done = make(chan struct{})
		}
		s.mu.Unlock()
		<-x.done
		if x.ended {
			return x.value, x.err
		}
	}
}

// Own returns a key's own value, by [Calls.Get] without versions. ok is
// false if f is nil or returns the zero value: then the key has none.
func Own[K, V comparable](c *Calls[K, V], key K, f func(K) V) (v V, ok bool) {
	if f == nil {
		return v, false
	}
	none := v
	v, _ = c.Get(key, 0, nil, func(key K) (V, error) { return f(key), nil })
	return v, v != none
}

// run makes a call added to the shard.
func (c *Calls[K, V]) run(s *shard[K, V], key K, x *call[V], known func() (V, bool), f func(K) (V, error)) (v V, err error) {
	returned := false
	defer func() { // runs even if f panics
		s.mu.Lock()
		defer s.mu.Unlock()
		if x.over = true; returned {
			x.value, x.err, x.ended = v, err, true
		}
		if x.done != nil {
			close(x.done)
		}
		if s.calls[key] != x { // the call was dropped meanwhile
			return
		}
		if !returned || err != nil || c.keep == 0 {
			delete(s.calls, key)
		} else if c.kept.Add(1) > c.keep {
			c.makeRoomLocked(s, key)
		}
	}()
	ok := false
	if known != nil {
		v, ok = known()
	}
	if !ok {
		v, err = f(key)
	}
	returned = true
	return v, err
}

// makeRoomLocked drops another key's result, or this key's if it finds no other.
func (c *Calls[K, V]) makeRoomLocked(s *shard[K, V], key K) {
	tries := 8 // some of the calls may still be under way
	for k, x := range s.calls {
		if x.ended && k != key {
			c.removeLocked(s, k, x)
			return
		}
		if tries--; tries == 0 {
			break
		}
	}
	c.removeLocked(s, key, s.calls[key])
}

func (c *Calls[K, V]) removeLocked(s *shard[K, V], key K, x *call[V]) {
	delete(s.calls, key)
	if x.ended {
		c.kept.Add(-1)
	}
}

// Drop drops the key's result. A call under way returns its result only to its present callers.
func (c *Calls[K, V]) Drop(key K) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.calls[key]; x != nil {
		c.removeLocked(s, key, x)
	}
}

// Take drops the key's result if it is v, because v is kept elsewhere from now on.
func (c *Calls[K, V]) Take(key K, v V) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.calls[key]; x != nil && x.ended && x.value == v {
		c.removeLocked(s, key, x)
	}
}

// Put keeps an earlier result of f, unless there is one or valid returns false. valid is called under Drop's lock.
func (c *Calls[K, V]) Put(key K, version uint64, v V, valid func() bool) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[key] != nil || !valid() {
		return
	}
	key = c.cloner.Clone(key)
	s.calls[key] = &call[V]{version: version, value: v, ended: true, over: true}
	if c.kept.Add(1) > c.keep {
		c.makeRoomLocked(s, key)
	}
}

// Len counts the kept results and the calls under way.
func (c *Calls[K, V]) Len() (n int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.calls)
		s.mu.Unlock()
	}
	return n
}
