package notices

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Opens holds the estimates of this process's open reservations, by key. Estimates are charged, but are
// not spending yet. If a key has regained more than was settled, its estimates are at most its remaining
// spending. The number of keys is bounded: for keys beyond maxOpens, estimates count as spent.
//
// In memory, a key's sum changes under its account's lock, so that
// each answer has the spending and the estimates at one moment.
type Opens struct {
	n    atomic.Int64 // keys
	mu   sync.Mutex
	keys map[Key]*Open
}

// Open is the sum of a key's estimates. Reservations refer to it. When the key
// has no more estimates, or was reset, later reservations refer to a new Open.
type Open struct {
	id  Key
	sum int64
}

// maxOpens is the maximum number of keys with estimates.
const maxOpens = 1 << 16

// Of returns the sum of a key's estimates, at most spent.
func (o *Opens) Of(id Key, spent int64) int64 {
	if o.n.Load() == 0 {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.find(id, spent).Total()
}

// find returns a key's estimates, or nil if it has none. The caller holds the lock.
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

// Total returns the sum, or 0 if x is nil.
func (x *Open) Total() int64 {
	if x == nil {
		return 0
	}
	return x.sum
}

// drop drops a key's estimates. The caller holds the lock.
func (o *Opens) drop(x *Open) {
	if x.sum = 0; o.keys[x.id] == x {
		delete(o.keys, x.id)
		o.n.Store(int64(len(o.keys)))
	}
}

// Add adds an estimate to a key's estimates. spent is the key's spending without the estimate.
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

// Settle subtracts an estimate from x, unless x is nil, and returns the key's remaining estimates.
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

// Forget drops a key's estimates when the key is reset.
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
