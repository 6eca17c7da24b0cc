package ratelimit

import (
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit/internal/meter"
)

// orphans are the lines of keys that have left the table while calls waited for them. Such a key leaves by Reset,
// or by eviction if the other candidates have waiting calls, too. The first call of such a line puts its key back
// into the table at once. Whichever call inserts the key gives it its line, so no newcomer overtakes the line.
//
// A line without a key belongs to an account in no table. The lock
// of orphans is the last of all: no other is taken while it is held.
type orphans[K comparable] struct {
	n  atomic.Int32 // lines: most tables never have one
	mu sync.Mutex   // guards all
	// All shards share the map, because it is nearly always empty.
	all map[K]*meter.Line
}

// leave takes the line from an account before it is dropped. The locks of account and shard are held.
func (o *orphans[K]) leave(key K, a *account) {
	line := a.State.Line()
	if line == nil {
		return
	}
	a.State = meter.State{}
	line.Rouse()
	o.mu.Lock()
	if o.all == nil {
		o.all = map[K]*meter.Line{}
	}
	o.all[key] = line
	o.n.Store(int32(len(o.all)))
	o.mu.Unlock()
	line.Owner.Store(new(account)) // this comes last, because from here on another lock guards the line
}

// adopt gives a new account its key's line, if there is one. The locks of account and shard are held.
func (o *orphans[K]) adopt(key K, a *account) {
	if o.n.Load() == 0 {
		return
	}
	line := o.take(key)
	if line == nil {
		return
	}
	parent := line.Owner.Load().(*account)
	parent.mu.Lock()
	defer parent.mu.Unlock()
	if line.First() == nil {
		return // all calls have left the line
	}
	a.plan.Attach(&a.State, a.last, line)
	a.held = true
	line.Owner.Store(a)
}

// take removes a key's line, and returns it.
func (o *orphans[K]) take(key K) *meter.Line {
	o.mu.Lock()
	defer o.mu.Unlock()
	line := o.all[key]
	delete(o.all, key)
	o.n.Store(int32(len(o.all)))
	return line
}

// drop removes a line after all calls have left it, if it is the key's.
func (o *orphans[K]) drop(key K, line *meter.Line) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[key] == line {
		delete(o.all, key)
		o.n.Store(int32(len(o.all)))
	}
}
