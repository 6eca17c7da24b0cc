package ratelimit

import (
	"math"
	"sync"
	"time"
)

// A key expires when it is fresh and has been idle for long enough: nothing is lost with it. Each insertion
// looks for expired keys among its shard's oldest (expireLocked), and Sweep among all keys. An insertion does
// not drop a key whose former limits still count: under one of these limits it would begin a new window.
//
// A table with RefuseNew also has an expiry heap, to find the fresh keys among all keys in the
// table (expireDue). The dirty list has the keys that may be fresh earlier than the heap expects.

// minIdle is the minimum time for which a key is kept while there is
// room. Without it, keys with high rates would come and go all the time.
const minIdle = int64(time.Minute)

// expireLocked drops up to two of the oldest keys, if they are fresh and have been idle for long.
// It drops two: so the table shrinks while keys are inserted. If the oldest key is not fresh, it
// may stay, with fresh keys behind it. expireLocked counts how often this happens. At a high
// count it makes a pass over all keys. Spread over as many insertions, the pass costs little.
func (t *table[K]) expireLocked(s *shard[K], now int64) {
	ttl := max(t.ttl, minIdle)
	for range 2 {
		oldest := s.order.front()
		if oldest == nil {
			return
		}
		// The age belongs to the first key of a block, and this key is no older. If the age is
		// negative, the clock has stepped back: then the age is not known, and the key is examined.
		if age := now - oldest.since; 0 <= age && age < ttl {
			return
		}
		if !t.expireOldestLocked(s, now, ttl) {
			break
		}
	}
	if s.blocked > s.order.n/4 {
		s.blocked = 0
		t.sweepLocked(s, s.order.runs(), now, ttl, (*account).unknown)
	}
}

// expireOldestLocked drops the oldest key, or gives it a second chance if it is in use.
// It reports false if it has done neither: the key is not fresh and not in use. It stays
// the oldest, and its turn comes again with the next insertion. A busy key is in use.
func (t *table[K]) expireOldestLocked(s *shard[K], now, ttl int64) bool {
	p, _ := s.order.take()
	a := &p.Value
	if !a.mu.TryLock() {
		s.order.add(p, now)
		return true
	}
	defer a.mu.Unlock()
	switch {
	case a.plan == nil:
		s.order.tombstones--
	case a.expired(now, ttl) && a.unknown(now):
		t.removeLocked(s, p, a.freshAt())
		t.count.Add(-1)
		t.expired.Add(1)
	case a.use.recent():
		a.use.clearRecent()
		s.order.add(p, now)
	default:
		s.order.putBack(p)
		s.blocked++
		return false
	}
	return true
}

// sweepRuns is how many runs of places a sweep handles before it releases the shard's lock: a few hundred keys.
const sweepRuns = 16

// sweep drops all fresh keys whose idle time is over. It releases a shard's lock
// from time to time, so new keys do not wait for the sweep of a large shard.
func (t *table[K]) sweep(clock Clock) (dropped int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		runs := s.order.runs()
		s.order.readers++
		s.mu.Unlock()
		for len(runs) > 0 {
			n := min(sweepRuns, len(runs))
			dropped += t.sweepSome(s, runs[:n], clock)
			runs = runs[n:]
		}
		s.mu.Lock()
		s.order.readers--
		s.mu.Unlock()
	}
	return dropped
}

// sweepSome sweeps a few runs at their own reading. The sweep of a large table takes long.
// A decision during it may have recorded a later time for a key than the sweep's beginning.
func (t *table[K]) sweepSome(s *shard[K], runs [][]*entry[K], clock Clock) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.sweepLocked(s, runs, reading(clock), t.ttl, nil)
}

// sweepLocked drops fresh keys in some runs if they have been idle for long enough, and if may
// reports true or is nil. Dropping a key may rebuild the order, but leaves the runs as they are.
func (t *table[K]) sweepLocked(s *shard[K], runs [][]*entry[K], now, ttl int64, may func(*account, int64) bool) (dropped int) {
	for _, run := range runs {
		for _, p := range run {
			if p != nil && t.sweepPlaceLocked(s, p, now, ttl, may) {
				dropped++
			}
		}
	}
	return dropped
}

// sweepPlaceLocked drops a key if it is fresh and has been idle for long enough. The place may be
// a tombstone, or its key may have left it since the runs were read: only the account shows it.
func (t *table[K]) sweepPlaceLocked(s *shard[K], e *entry[K], now, ttl int64, may func(*account, int64) bool) bool {
	a := &e.Value
	if !a.mu.TryLock() {
		return false
	}
	defer a.mu.Unlock()
	if a.plan == nil || !a.expired(now, ttl) || may != nil && !may(a, now) {
		return false
	}
	t.removeAnywhereLocked(s, e, a.freshAt())
	t.count.Add(-1)
	t.expired.Add(1)
	return true
}

// mostLooks bounds how many keys one call examines if the table refuses new keys. Without it, one refusal would
// take time linear in the number of keys, because each may have been used since its instant was computed.
const mostLooks = 512

// expireDue makes room in a table that refuses new keys: it drops a fresh key. It examines at most mostLooks
// due keys, and the next call examines the next ones. If none is fresh, it reports false. Busy and pinned keys
// do not count. The call makes them due again only when it ends: otherwise it would find them again and again.
func (t *table[K]) expireDue(now int64) bool {
	t.expiry.collect()
	var kept []*account
	defer func() {
		for _, a := range kept {
			t.expiry.add(a, now)
		}
	}()
	for range mostLooks {
		e := t.expiry.next(now)
		if e == nil {
			return false
		}
		switch dropped, again := t.dropIfFresh(e, now); {
		case dropped:
			return true
		case again:
			kept = append(kept, &e.Value)
		}
	}
	return false
}

// dropIfFresh drops a key to make room, if the key is fresh. It reports
// again if it must be called again, because the key is busy or pinned.
func (t *table[K]) dropIfFresh(e *entry[K], now int64) (dropped, again bool) {
	a, s := &e.Value, t.shard(e.Hash())
	s.mu.Lock()
	defer s.mu.Unlock()
	if !a.mu.TryLock() {
		return false, true
	}
	defer a.mu.Unlock()
	if a.plan == nil {
		return false, false
	}
	a.use.clearDirty() // from here on, a change to an earlier instant has to list the key again
	switch at := a.freshAt(); {
	case at > now:
		t.expiry.add(a, at)
		return false, false
	case a.use.isPinned(), a.waitedFor():
		return false, true
	}
	t.expired.Add(1)
	t.removeAnywhereLocked(s, e, a.freshAt())
	return true, false
}

// expiryHeap finds fresh keys, in a table that refuses new keys rather than forget a
// known key's spending. It has one entry for each key, with a lower bound of the
// instant when the key is fresh. So no key is fresh if all entries are later than now.
//
// A decision only ever moves the instant when its key is fresh to a later one, so it does not touch the heap. next
// returns a key whose entry is due. If the key is not fresh, the caller adds it again with the new instant. Each
// such addition is due to a decision on the key. A change to an earlier instant adds the key to the dirty list.
//
// No call takes time linear in the number of keys: the heap's memory grows by pages, and each entry stores its place.
//
// Its lock comes after the locks of shards and accounts.
type expiryHeap[K comparable] struct {
	dirty dirtyList

	mu   sync.Mutex
	keys map[*account]*dueKey[K] // the keys in the table
	heap dueHeap[K]              // all keys' entries, except those taken by next
}

func newExpiryHeap[K comparable]() *expiryHeap[K] {
	return &expiryHeap[K]{keys: make(map[*account]*dueKey[K])}
}

// insert adds a key that is new in the table. While there is room,
// no call needs next, so insert also keeps the dirty list short.
func (h *expiryHeap[K]) insert(e *entry[K], at int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var buf [dirtyAtOnce]*account
	h.collectLocked(buf[:])
	d := &dueKey[K]{entry: e}
	h.keys[&e.Value] = d
	h.heap.push(at, d)
}

// remove forgets a key dropped from the table.
func (h *expiryHeap[K]) remove(a *account) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.keys[a]
	if delete(h.keys, a); d != nil && d.place != taken {
		h.heap.remove(d.place)
	}
}

// add adds a key again after next has returned it. The key is not fresh before at.
func (h *expiryHeap[K]) add(a *account, at int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.keys[a]; d != nil && d.place == taken {
		h.heap.push(at, d)
	}
}

// next removes a due key from the heap and returns it. It returns nil if no key is fresh.
func (h *expiryHeap[K]) next(now int64) *entry[K] {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.heap.n == 0 || h.heap.at(0).at > now {
		return nil
	}
	d := h.heap.at(0).key
	h.heap.remove(0)
	return d.entry
}

// collect makes keys of the dirty list due at once, as many as one call may look at.
func (h *expiryHeap[K]) collect() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var buf [mostLooks]*account
	h.collectLocked(buf[:])
}

// collectLocked makes keys of the dirty list due at once, as many as fit into buf.
// It skips a key taken by next: next's caller examines it after it was listed.
func (h *expiryHeap[K]) collectLocked(buf []*account) {
	for _, a := range h.dirty.take(buf) {
		if d := h.keys[a]; d != nil && d.place != taken {
			h.heap.at(d.place).at = math.MinInt64
			h.heap.up(d.place)
		}
	}
}

// dueKey is a table's key with an entry in the heap.
type dueKey[K comparable] struct {
	entry *entry[K]
	place int // its entry's place in the heap, or taken
}

// taken is a key's place after next has returned the key.
const taken = -1

// dueEntry holds a lower bound of the instant when a key is fresh.
type dueEntry[K comparable] struct {
	at  int64
	key *dueKey[K]
}

const (
	duePage = 1024 // entries in a page
	dueWays = 4    // entries below each one
)

// dueHeap is a heap of entries, the earliest first. It consists of
// pages, because copying a large slice when it grows takes long.
type dueHeap[K comparable] struct {
	pages []*[duePage]dueEntry[K]
	n     int
}

func (h *dueHeap[K]) at(i int) *dueEntry[K] { return &h.pages[i/duePage][i%duePage] }

func (h *dueHeap[K]) push(at int64, d *dueKey[K]) {
	if h.n == len(h.pages)*duePage {
		h.pages = append(h.pages, new([duePage]dueEntry[K]))
	}
	h.put(h.n, dueEntry[K]{at, d})
	h.n++
	h.up(h.n - 1)
}

// put writes an entry to a place.
func (h *dueHeap[K]) put(i int, e dueEntry[K]) {
	*h.at(i) = e
	e.key.place = i
}

// remove removes the entry at a place. It frees the last page when the page before it has room, too.
func (h *dueHeap[K]) remove(i int) {
	h.at(i).key.place = taken
	h.n--
	last := *h.at(h.n)
	if *h.at(h.n) = (dueEntry[K]{}); i < h.n {
		h.put(i, last)
		h.up(i)
		h.down(last.key.place)
	}
	if end := len(h.pages) - 1; h.n < (end-1)*duePage {
		h.pages[end] = nil
		h.pages = h.pages[:end]
	}
}

// up moves an entry up if it is earlier than its ancestors.
func (h *dueHeap[K]) up(i int) {
	e := *h.at(i)
	for i > 0 {
		above := (i - 1) / dueWays
		if h.at(above).at <= e.at {
			break
		}
		h.put(i, *h.at(above))
		i = above
	}
	h.put(i, e)
}

// down moves an entry down if it is later than its descendants.
func (h *dueHeap[K]) down(i int) {
	e := *h.at(i)
	for {
		first := i*dueWays + 1
		if first >= h.n {
			break
		}
		least := first
		for j := first + 1; j < min(first+dueWays, h.n); j++ {
			if h.at(j).at < h.at(least).at {
				least = j
			}
		}
		if e.at <= h.at(least).at {
			break
		}
		h.put(i, *h.at(least))
		i = least
	}
	h.put(i, e)
}

// dirtyList returns the list for plans. It returns nil if the table evicts:
// then the table refuses no key, and a refund takes no second lock.
func (t *table[K]) dirtyList() *dirtyList {
	if t.expiry == nil {
		return nil
	}
	return &t.expiry.dirty
}
