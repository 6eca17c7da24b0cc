package ratelimit

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// minIdle is for how long a key is kept at least if there is room. Without it, keys with
// high rates would come and go all the time.
const minIdle = int64(time.Minute)

// expireDue makes room in a table that refuses new keys: it drops a key that is fresh. If
// none is, it reports false. Keys that are busy or pinned do not count. They get new entries
// in the heap, but only at the end: else this call would meet them again and again.
func (t *table[K]) expireDue(now int64) bool {
	var kept []*account
	defer func() {
		for _, b := range kept {
			t.expiry.add(b, now)
		}
	}()
	for {
		e := t.expiry.next(now)
		if e == nil {
			return false
		}
		switch dropped, again := t.dropIfFresh(e, now); {
		case dropped:
			return true
		case again:
			kept = append(kept, e.Value)
		}
	}
}

// dropIfFresh drops a key that is fresh, to make room. If it cannot tell because the key is
// busy, or if the key is pinned, it reports that it has to be called again.
func (t *table[K]) dropIfFresh(e *entry[K], now int64) (dropped, again bool) {
	b, s := e.Value, t.shard(e.Hash())
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.mu.TryLock() {
		return false, true
	}
	defer b.mu.Unlock()
	if b.plan == nil {
		return false, false
	}
	b.use.clearDirty() // from here on, what makes it fresh earlier has to list it again
	switch at := b.freshAt(); {
	case at > now:
		t.expiry.add(b, at)
		return false, false
	case b.use.isPinned():
		return false, true
	}
	t.expired.Add(1)
	t.removeAnywhereLocked(s, e, b.freshAt())
	return true, false
}

// expiryHeap finds keys that are fresh, in a table that refuses new keys rather than forget
// what a known one has spent. It has at least one entry for each key, with an instant
// before which the key is not fresh. So no key is fresh if all entries are later than now.
//
// A decision moves the instant at which its key is fresh, and only ever to a later one, so
// it does not touch the heap: next returns a key whose entry is due, and whoever finds it
// not to be fresh adds an entry for when it will be. Each entry so added is paid for by
// a decision on its key. What can make a key fresh earlier adds it to the dirty list.
//
// Its lock comes after those of shards and accounts.
type expiryHeap[K comparable] struct {
	dirty dirtyList

	mu      sync.Mutex
	keys    map[*account]*entry[K] // that are in the table
	entries expiryEntries          // of keys in the table, and of some that were dropped
}

func newExpiryHeap[K comparable]() *expiryHeap[K] {
	return &expiryHeap[K]{keys: make(map[*account]*entry[K])}
}

// insert adds a key that was inserted into the table. It also keeps the heap and the dirty list
// from growing without bound while there is room and nobody calls next: entries are at most
// twice the keys and a batch, and the list is emptied into them.
func (h *expiryHeap[K]) insert(e *entry[K], at int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.collectLocked()
	h.keys[e.Value] = e
	heap.Push(&h.entries, expiryEntry{at, e.Value})
	if len(h.entries) > 2*len(h.keys)+batchSize {
		h.shrinkLocked()
	}
}

// remove forgets a key that was dropped from the table. Its entries stay until they are due
// or too many: to find them would take time linear in the number of entries.
func (h *expiryHeap[K]) remove(b *account) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.keys, b)
}

// add adds an entry for a key that next has returned, and that is not fresh before at.
func (h *expiryHeap[K]) add(b *account, at int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.keys[b]; ok {
		heap.Push(&h.entries, expiryEntry{at, b})
	}
}

// next removes an entry that is due and returns its key, or nil if no key is fresh.
func (h *expiryHeap[K]) next(now int64) *entry[K] {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.collectLocked()
	for len(h.entries) > 0 && h.entries[0].at <= now {
		b := heap.Pop(&h.entries).(expiryEntry).b
		if e := h.keys[b]; e != nil {
			return e
		}
	}
	return nil
}

// collectLocked makes the keys of the dirty list due at once.
func (h *expiryHeap[K]) collectLocked() {
	for _, b := range h.dirty.take() {
		heap.Push(&h.entries, expiryEntry{math.MinInt64, b})
	}
}

// shrinkLocked keeps the first entry of each key in the table. The others are later, and next
// adds one when it finds that the key is not fresh yet. It removes half of the heap or
// more, so it runs rarely enough that its time for each insertion is constant on average.
func (h *expiryHeap[K]) shrinkLocked() {
	first := make(map[*account]int64, len(h.keys))
	for _, e := range h.entries {
		if at, seen := first[e.b]; !seen || e.at < at {
			first[e.b] = e.at
		}
	}
	h.entries = h.entries[:0]
	for b, at := range first {
		if _, ok := h.keys[b]; ok {
			h.entries = append(h.entries, expiryEntry{at, b})
		}
	}
	heap.Init(&h.entries)
}

// expiryEntry says that the account's key is not fresh before an instant.
type expiryEntry struct {
	at int64
	b  *account
}

// expiryEntries are a heap, the earliest first.
type expiryEntries []expiryEntry

func (h expiryEntries) Len() int { return len(h) }

func (h expiryEntries) Less(i, j int) bool { return h[i].at < h[j].at }

func (h expiryEntries) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *expiryEntries) Push(e any) { *h = append(*h, e.(expiryEntry)) }

func (h *expiryEntries) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = expiryEntry{}
	*h = (*h)[:last]
	return e
}

// dirtyList lists the keys that may be fresh earlier than the expiry heap knows: something
// that they had spent was given back, or their limit has changed. The heap looks at them
// before it says that no key is fresh. A key is on the list once, however often that
// happens: see usage.
//
// Plans refer to it, because what eases a key knows no more than the key's account and its
// plan. Its lock comes after all others.
type dirtyList struct {
	mu       sync.Mutex
	accounts []*account
}

func (d *dirtyList) add(b *account) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.accounts = append(d.accounts, b)
}

// take removes all that are listed and returns them.
func (d *dirtyList) take() []*account {
	d.mu.Lock()
	defer d.mu.Unlock()
	accounts := d.accounts
	d.accounts = nil
	return accounts
}

// dirtyList returns the list for plans, or nil if the table evicts: then nothing is refused,
// and giving back takes no second lock.
func (t *table[K]) dirtyList() *dirtyList {
	if t.expiry == nil {
		return nil
	}
	return &t.expiry.dirty
}
