package ratelimit

import (
	"container/heap"
	"math"
	"sync"
)

// dueKeys finds keys that are fresh, in a table that refuses new keys rather than forget
// what a known one has spent. It has at least one entry for each key, with an instant
// before which the key is not fresh. So no key is fresh if all entries are later than now.
//
// A decision moves the instant at which its key is fresh, and only ever to a later one, so
// it does not touch the entries: next returns a key whose entry is due, and whoever finds it
// not to be fresh adds an entry for when it will be. Each entry so added is paid for by
// a decision on its key. What can make a key fresh earlier adds it to early.
//
// Its lock comes after those of shards and accounts.
type dueKeys[K comparable] struct {
	early early

	mu      sync.Mutex
	keys    map[*account]K // that are in the table
	entries dueHeap        // of keys in the table, and of some that were dropped
}

// dueEntry says that the account's key is not fresh before an instant.
type dueEntry struct {
	at int64
	b  *account
}

func newDueKeys[K comparable]() *dueKeys[K] {
	return &dueKeys[K]{keys: make(map[*account]K)}
}

// insert adds a key that was inserted into the table.
func (q *dueKeys[K]) insert(key K, b *account, at int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.collect()
	q.keys[b] = key
	heap.Push(&q.entries, dueEntry{at, b})
	if len(q.entries) > 2*len(q.keys)+batchSize {
		q.shrink()
	}
}

// remove forgets a key that was dropped from the table. Its entries stay until they are due
// or too many.
func (q *dueKeys[K]) remove(b *account) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.keys, b)
}

// later adds an entry for a key that next has returned, and that is not fresh before at.
func (q *dueKeys[K]) later(b *account, at int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.keys[b]; ok {
		heap.Push(&q.entries, dueEntry{at, b})
	}
}

// next removes an entry that is due and returns its key, or false if no key is fresh.
func (q *dueKeys[K]) next(now int64) (key K, b *account, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.collect()
	for len(q.entries) > 0 && q.entries[0].at <= now {
		b = heap.Pop(&q.entries).(dueEntry).b
		if key, ok = q.keys[b]; ok {
			return key, b, true
		}
	}
	return key, nil, false
}

// collect makes the keys that may be fresh earlier than was known due at once.
func (q *dueKeys[K]) collect() {
	for _, a := range q.early.take() {
		heap.Push(&q.entries, dueEntry{math.MinInt64, a.(*account)})
	}
}

// shrink keeps the first entry of each key in the table.
func (q *dueKeys[K]) shrink() {
	first := make(map[*account]int64, len(q.keys))
	for _, e := range q.entries {
		if at, seen := first[e.b]; !seen || e.at < at {
			first[e.b] = e.at
		}
	}
	q.entries = q.entries[:0]
	for b, at := range first {
		if _, ok := q.keys[b]; ok {
			q.entries = append(q.entries, dueEntry{at, b})
		}
	}
	heap.Init(&q.entries)
}

// dueHeap is a heap of entries, the earliest first.
type dueHeap []dueEntry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(e any)        { *h = append(*h, e.(dueEntry)) }
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = dueEntry{}
	*h = (*h)[:last]
	return e
}
