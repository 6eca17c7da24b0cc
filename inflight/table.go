package inflight

import (
	"container/heap"
	"sync"

	"github.com/weir-go/ratelimit/internal/keys"
)

// table finds keys' semaphores. It has at most max of them. A lookup takes no lock. An
// insertion or removal takes the table's lock, before a key's lock and never after it.
type table[K comparable] struct {
	index  *keys.Map[K, *entry[K]]
	cloner keys.Cloner[K]
	max    int

	mu    sync.Mutex
	count int
	idle  idleHeap[K] // all keys, except those found busy and not idle since
}

// entry is a semaphore and its place in the table.
type entry[K comparable] struct {
	semaphore
	key  K
	rank uint64 // idleAt as of the heap's last look, so never above idleAt
}

// smallTable is the maximum size of a table with ordered idle keys from the start.
const smallTable = 1024

func newTable[K comparable](max int) *table[K] {
	return &table[K]{index: keys.NewMap[K, *entry[K]](max), cloner: keys.NewCloner[K](), max: max}
}

func (t *table[K]) find(key K) *entry[K] { return t.index.Find(key) }

// roomLocked reports whether there is room for one more key. If the table is full, it tries to make room.
func (t *table[K]) roomLocked() bool { return t.count < t.max || t.forgetLocked() }

// publishLocked adds a key. There is room for it.
func (t *table[K]) publishLocked(e *entry[K]) {
	e.idleAt = e.common.idled.Add(1)
	e.rank = e.idleAt
	heap.Push(&t.idle, e)
	t.index.Add(e.key, e)
	t.count++
	if t.max <= smallTable || t.count > t.max/2 {
		e.common.inOrder.Store(true)
	}
}

// entriesLocked returns the entries of the given keys in the table, or all entries if no key is given.
func (t *table[K]) entriesLocked(of []K) (found []*entry[K]) {
	for _, key := range of {
		if e := t.find(key); e != nil {
			found = append(found, e)
		}
	}
	if len(of) > 0 {
		return found
	}
	found = make([]*entry[K], 0, t.count)
	for e := range t.index.All() {
		found = append(found, e.Value)
	}
	return found
}

// forgetLocked removes the key that has been idle for longest, if any is idle. An entry's rank in the heap may
// be outdated, but is never too high. So the first entry with a correct rank is the longest idle key. A busy
// key leaves the heap until it is idle again. So an entry is examined at most once for each use of its key.
func (t *table[K]) forgetLocked() bool {
	for len(t.idle) > 0 {
		e := t.idle[0]
		e.mutex().Lock()
		done := t.lookLocked(e)
		e.mutex().Unlock()
		if done {
			return true
		}
	}
	return false
}

// lookLocked examines the heap's first entry, and reports whether it has removed the key from the table. The caller
// holds the locks of the table and of the entry.
func (t *table[K]) lookLocked(e *entry[K]) bool {
	switch {
	case !e.idleLocked():
		heap.Pop(&t.idle)
		e.unpark, e.parked = func() { t.unpark(e) }, true
	case e.idleAt != e.rank:
		e.rank = e.idleAt
		heap.Fix(&t.idle, 0)
	default:
		heap.Pop(&t.idle)
		e.dead = true
		t.index.Remove(e.key)
		t.count--
		return true
	}
	return false
}

// unpark puts a newly idle key back into the heap. Until then no other
// goroutine can forget or park it, because both take their keys from the heap.
func (t *table[K]) unpark(e *entry[K]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.mutex().Lock()
	e.rank = e.idleAt
	e.mutex().Unlock()
	heap.Push(&t.idle, e)
}

// idleHeap is a heap of keys. The first has been idle for longest.
type idleHeap[K comparable] []*entry[K]

func (h idleHeap[K]) Len() int           { return len(h) }
func (h idleHeap[K]) Less(i, j int) bool { return h[i].rank < h[j].rank }
func (h idleHeap[K]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

func (h *idleHeap[K]) Push(x any) { *h = append(*h, x.(*entry[K])) }

func (h *idleHeap[K]) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
