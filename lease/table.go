package lease

import (
	"container/list"
	"sync"

	"github.com/weir-go/ratelimit/internal/keys"
)

// table finds holdings, never more of them than max. Finding one takes no lock. Which
// one leaves is decided by second chance: one that was used since it was last looked
// at goes to the end of the order.
type table[K comparable] struct {
	index   keys.Map[K, *holding[K]]
	max     int
	returns *returns

	mu    sync.Mutex // guards the order; taken before a holding's lock
	order *list.List // of *holding[K], oldest first
	local uint64     // decisions made by holdings that have left
}

// looks is how many of the oldest holdings are looked at for one to evict.
const looks = 16

func newTable[K comparable](maxKeys int, r *returns) *table[K] {
	return &table[K]{index: keys.NewMap[K, *holding[K]](maxKeys), max: maxKeys, returns: r, order: list.New()}
}

// find returns the key's holding, or nil if there is none.
func (t *table[K]) find(key K) *holding[K] { return t.index.Find(key) }

// add returns the key's holding, and a new one if there is none. It returns nil if there is
// no room, because all keys are waiting for the remote limiter.
func (t *table[K]) add(key K, known told) *holding[K] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.index.Find(key); h != nil {
		return h
	}
	if t.order.Len() >= t.max && !t.evictLocked() {
		return nil
	}
	h := &holding[K]{key: key, low: -1, told: known}
	h.place = t.order.PushBack(h)
	t.index.Add(key, h)
	return h
}

// evictLocked makes room for one key. A key that waits for the remote limiter stays. In
// the second round no other does: the first has taken note of each use.
func (t *table[K]) evictLocked() bool {
	for range 2 * min(looks, t.order.Len()) {
		oldest := t.order.Front()
		if h := oldest.Value.(*holding[K]); t.dropLocked(h) {
			return true
		}
		t.order.MoveToBack(oldest)
	}
	return false
}

// dropLocked drops a holding that was not used since it was last looked at, and gives
// its batches back.
func (t *table[K]) dropLocked(h *holding[K]) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	used := h.used
	h.used = false
	if used || h.flight != nil {
		return false
	}
	t.returns.give(h.removeLocked(func(*batch) bool { return true }))
	h.dropped = true
	if h.timer != nil {
		h.timer.Stop()
	}
	t.local += h.local
	t.order.Remove(h.place)
	t.index.Remove(h.key)
	return true
}

// all returns all holdings, oldest first.
func (t *table[K]) all() []*holding[K] {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*holding[K], 0, t.order.Len())
	for e := t.order.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*holding[K]))
	}
	return all
}

// leftKeys returns how many decisions were made by holdings that have left.
func (t *table[K]) leftKeys() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.local
}
