// Package lookup shares the calls of a user's function by key, such as LimitFor: concurrent callers of one key share one call, and a
// result is kept until it is dropped or replaced.
package lookup

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit/internal/keys"
)

// Calls shares calls by key. Make one with [New]. It is safe for concurrent use. No lock is held during a call.
type Calls[K, V comparable] struct {
	keep   int64
	kept   atomic.Int64 // the number of results, in all shards
	seed   maphash.Seed
	cloner keys.Cloner[K]
	shards []shard[K, V]
}

type shard[K, V comparable] struct {
	mu    sync.Mutex // guards the map, and all fields of its calls but the results of an ended one
	calls map[K]*call[V]
}

// call is a call that is under way, or its result.
type call[V comparable] struct {
	version uint64
	value   V
	err     error
	ended   bool          // value and err are set
	over    bool          // ended, or the function has panicked
	done    chan struct{} // is closed when the call is over; nil while there is no other caller
}

// New returns calls that keep up to this number of results. With 0, only concurrent callers share a result.
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

// Find returns the result that is kept for a key, of this version or a later one.
func (c *Calls[K, V]) Find(key K, version uint64) (v V, ok bool) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.calls[key]; x != nil && x.ended && x.version >= version {
		return x.value, true
	}
	return v, false
}

// Get returns f's result for a key, of this version or a later one: the result that is kept; or the result of the call that is under way,
// for which it waits; or of a call of its own. The error of a call is returned to its callers and not kept. If a call panics, its caller
// panics, and the callers that waited for it call f themselves, one after the other.
//
// If known is not nil, it is called before f, and its result is taken if it has one: for values that leave the Calls for another place.
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
				own = c.cloner.Clone(key) // it may be a part of a longer text
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

// One returns the result of f, which has no error, for a key without versions.
func One[K, V comparable](c *Calls[K, V], key K, f func(K) V) V {
	v, _ := c.Get(key, 0, nil, func(key K) (V, error) { return f(key), nil })
	return v
}

// run makes a call that is in the shard.
func (c *Calls[K, V]) run(s *shard[K, V], key K, x *call[V], known func() (V, bool), f func(K) (V, error)) (v V, err error) {
	returned := false
	defer func() { // also if f panics
		s.mu.Lock()
		defer s.mu.Unlock()
		if x.over = true; returned {
			x.value, x.err, x.ended = v, err, true
		}
		if x.done != nil {
			close(x.done)
		}
		if s.calls[key] != x { // it was dropped meanwhile
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

// makeRoomLocked drops another key's result, or this key's if there is none.
func (c *Calls[K, V]) makeRoomLocked(s *shard[K, V], key K) {
	tries := 8 // some of the calls may be under way
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

// Drop forgets the key's result. A call that is under way returns its result to its present callers alone.
func (c *Calls[K, V]) Drop(key K) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.calls[key]; x != nil {
		c.removeLocked(s, key, x)
	}
}

// Take forgets the key's result if it is v, because it is in another place from now on.
func (c *Calls[K, V]) Take(key K, v V) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.calls[key]; x != nil && x.ended && x.value == v {
		c.removeLocked(s, key, x)
	}
}

// Put keeps a result that f has returned before, unless there is one, or valid reports false. It is called under the lock that Drop takes.
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

// Len returns the number of results and of calls under way.
func (c *Calls[K, V]) Len() (n int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.calls)
		s.mu.Unlock()
	}
	return n
}
