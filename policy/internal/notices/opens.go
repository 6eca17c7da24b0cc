package notices

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Opens are the estimates of the open reservations of this process, by key: they are charged, but are no spending yet. Of a key that has
// regained more than was settled, the estimates are at most what is left. They are bounded: a key beyond maxOpens has its estimates
// counted as spent.
//
// In memory a key's sum changes under the lock of its account, so each answer has the spending and the estimates of one moment.
type Opens struct {
	n    atomic.Int64 // of keys
	mu   sync.Mutex
	keys map[Key]*Open
}

// Open is the sum of a key's estimates. Reservations refer to it: once the key has none, or was reset, later ones have another.
type Open struct {
	id  Key
	sum int64
}

// maxOpens bounds the keys with estimates.
const maxOpens = 1 << 16

// Of returns a key's estimates, which are at most what it has spent.
func (o *Opens) Of(id Key, spent int64) int64 {
	if o.n.Load() == 0 {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.find(id, spent).Total()
}

// find returns the estimates of a key, nil if it has none. The caller holds the lock.
func (o *Opens) find(id Key, spent int64) *Open {
	x := o.keys[id]
	if x == nil {
		return nil
	}
	if x.sum = min(x.sum, spent); x.sum <= 0 {
		o.drop(x)
		return nil
	}
	return x
}

// Total returns the sum, 0 of nil.
func (x *Open) Total() int64 {
	if x == nil {
		return 0
	}
	return x.sum
}

// drop forgets a key's estimates. The caller holds the lock.
func (o *Opens) drop(x *Open) {
	if x.sum = 0; o.keys[x.id] == x {
		delete(o.keys, x.id)
		o.n.Store(int64(len(o.keys)))
	}
}

// Add adds an estimate to those of a key that has spent so much without it.
func (o *Opens) Add(id Key, spent, cost int64) (before int64, x *Open) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if x = o.find(id, spent); x == nil {
		if len(o.keys) >= maxOpens {
			return 0, nil
		}
		if o.keys == nil {
			o.keys = map[Key]*Open{}
		}
		id.Key = strings.Clone(id.Key)
		x = &Open{id: id}
		o.keys[id] = x
		o.n.Store(int64(len(o.keys)))
	}
	before = x.sum
	x.sum += cost
	return before, x
}

// Settle takes an estimate out of the sum x, if there is one, and returns what the key has left.
func (o *Opens) Settle(x *Open, id Key, cost int64) int64 {
	if o.n.Load() == 0 {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if x != nil {
		if x.sum -= cost; x.sum <= 0 {
			o.drop(x)
		}
	}
	return o.keys[id].Total()
}

// Forget forgets the estimates of a key that is reset.
func (o *Opens) Forget(id Key) {
	if o.n.Load() == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if x := o.keys[id]; x != nil {
		o.drop(x)
	}
}
