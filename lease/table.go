package lease

import (
	"sync"

	"github.com/weir-go/ratelimit/internal/keys"
)

// table finds holdings, at most max of them, without taking a lock. Eviction gives
// a second chance: a holding used since the last look moves to the order's end.
type table[K comparable] struct {
	index   *keys.Map[K, *holding[K]]
	cloner  keys.Cloner[K]
	max     int
	returns *returns

	mu    sync.Mutex // guards the order; locked before a holding's lock
	order holding[K] // the sentinel of the ring of all holdings, oldest first
	len   int
	local uint64 // decisions of holdings before they left the table
}

// looks is how many old holdings eviction examines.
const looks = 16

func newTable[K comparable](maxKeys int, r *returns) *table[K] {
	t := &table[K]{index: keys.NewMap[K, *holding[K]](maxKeys), cloner: keys.NewCloner[K](), max: maxKeys, returns: r}
	t.order.next, t.order.prev = &t.order, &t.order
	return t
}

// pushLocked puts a holding at the order's end.
func (t *table[K]) pushLocked(h *holding[K]) {
	h.prev, h.next = t.order.prev, &t.order
	h.prev.next, h.next.prev = h, h
	t.len++
}

// pullLocked removes a holding from the order.
func (t *table[K]) pullLocked(h *holding[K]) {
	h.prev.next, h.next.prev = h.next, h.prev
	h.next, h.prev = nil, nil
	t.len--
}

// find returns the key's holding, or nil if there is none.
func (t *table[K]) find(key K) *holding[K] { return t.index.Find(key) }

// add returns the key's holding, and makes one if there is none. It returns nil if the table
// is full and no key can leave, since each waits for the remote limiter or has open claims.
func (t *table[K]) add(key K, known remoteState) *holding[K] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.index.Find(key); h != nil {
		return h
	}
	if t.len >= t.max && !t.evictLocked() {
		return nil
	}
	key = t.cloner.Clone(key) // the key may be a part of a larger text, and it stays for long
	h := &holding[K]{key: key, low: -1, remoteState: known, last: -maxReading, returns: t.returns}
	t.pushLocked(h)
	t.index.Add(key, h)
	return h
}

// evictLocked makes room for one key. Keys stay while they wait for the remote limiter or have
// open claims. The first round clears marks of use, so any other key may leave in the second.
func (t *table[K]) evictLocked() bool {
	for range 2 * min(looks, t.len) {
		oldest := t.order.next
		if t.dropLocked(oldest) {
			return true
		}
		t.pullLocked(oldest)
		t.pushLocked(oldest)
	}
	return false
}

// dropLocked drops a holding if it was not used since the last look, and gives its batches back.
func (t *table[K]) dropLocked(h *holding[K]) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	used := h.used
	h.used = false
	if used || h.fetch != nil || h.open > 0 {
		return false
	}
	h.retireLocked(func(*batch) bool { return true })
	h.dropped = true
	t.local += h.local
	t.pullLocked(h)
	t.index.Remove(h.key)
	return true
}

// all returns all holdings, oldest first.
func (t *table[K]) all() []*holding[K] {
	all, _ := t.standing()
	return all
}

// standing returns all holdings, oldest first, and how many decisions made by holdings have left.
func (t *table[K]) standing() (all []*holding[K], left uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all = make([]*holding[K], 0, t.len)
	for h := t.order.next; h != &t.order; h = h.next {
		all = append(all, h)
	}
	return all, t.local
}
