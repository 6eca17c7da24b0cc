// Package sketch counts which keys have occurred most often lately, in bounded memory. It
// uses the space-saving algorithm by Metwally, Agrawal and El Abbadi, over two windows.
//
// A window has a fixed number of counters. A key without a counter takes over the counter with the lowest count, and
// continues from that count. So a count is never too low, and the counter records by how much it may be too high. A
// key is sure to have a counter if it occurs more often than all occurrences divided by the number of counters.
package sketch

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Window is a window's length. Counts cover the present window and the one before, so 5 to 10 minutes.
	Window = 5 * time.Minute

	// Counters is how many counters a shard's window has.
	Counters = 256

	// shards is how many shards the keys are divided into. With several
	// shards, denials for different keys seldom wait for the same lock.
	shards = 8
)

// ID identifies a counter.
type ID struct {
	Rule, Key string
	Shadow    bool
}

// owned returns the ID with a copy of its key. The key may be a part of a much longer text, such as a request's header.
func (id ID) owned() ID {
	id.Key = strings.Clone(id.Key)
	return id
}

// Count counts how often a key has occurred. The true number is at most Count, and at least Count-Error.
type Count struct {
	ID
	Count, Error int64
}

// Sketch counts how often keys occur. Make one with [New]. It is safe for concurrent use.
type Sketch struct {
	start  time.Time
	seed   maphash.Seed
	shards [shards]shard
}

// New returns an empty sketch.
func New() *Sketch { return &Sketch{start: time.Now(), seed: maphash.MakeSeed()} }

// Add counts a key.
func (s *Sketch) Add(id ID) {
	w := s.window()
	sh := &s.shards[maphash.Comparable(s.seed, id)%shards]
	sh.mu.Lock()
	sh.turn(w)
	sh.now.add(id)
	sh.mu.Unlock()
}

// All returns the recent counts, highest first.
func (s *Sketch) All() (all []Count) {
	w := s.window()
	for i := range s.shards {
		all = s.shards[i].appendTo(all, w)
	}
	slices.SortFunc(all, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key), shadowsLast(a, b))
	})
	return all
}

// shadowsLast compares two counts for one key under one rule.
// There are two if the rule was both a shadow and enforced lately.
func shadowsLast(a, b Count) int {
	switch {
	case a.Shadow == b.Shadow:
		return 0
	case a.Shadow:
		return 1
	}
	return -1
}

// window returns the present window's number.
func (s *Sketch) window() int64 { return int64(time.Since(s.start) / Window) }

// shard counts the keys with one hash, in the present window and in the one before.
type shard struct {
	mu        sync.Mutex
	window    int64 // the present window's number
	now, last summary
}

// turn begins a window if its number is new. A number below the present one
// comes from a call that had to wait for the lock, and changes nothing.
func (sh *shard) turn(window int64) {
	if window <= sh.window {
		return
	}
	if window == sh.window+1 {
		sh.now, sh.last = sh.last, sh.now
	} else {
		sh.last.clear()
	}
	sh.now.clear()
	sh.window = window
}

// appendTo appends both windows' sums. If a window is full and a key has no counter
// in it, the key has occurred at most as often as the key with the lowest count.
func (sh *shard) appendTo(all []Count, window int64) []Count {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.turn(window)
	sum := func(c Count, other *summary) Count {
		if o := other.at[c.ID]; o != nil {
			c.Count += o.Count.Count
			c.Error += o.Error
		} else {
			c.Count += other.least()
			c.Error += other.least()
		}
		return c
	}
	for _, c := range sh.now.heap {
		all = append(all, sum(c.Count, &sh.last))
	}
	for _, c := range sh.last.heap {
		if sh.now.at[c.ID] == nil {
			all = append(all, sum(c.Count, &sh.now))
		}
	}
	return all
}

// summary is one window's counters. Its zero value is empty.
type summary struct {
	heap []*counter // the lowest count first; the memory behind the slice is reused
	at   map[ID]*counter
}

type counter struct {
	Count
	place int // the index in the heap
}

func (s *summary) clear() {
	for _, c := range s.heap {
		c.Count = Count{}
	}
	s.heap = s.heap[:0]
	clear(s.at)
}

// least returns how often a key without a counter may have occurred.
func (s *summary) least() int64 {
	if len(s.heap) < Counters {
		return 0
	}
	return s.heap[0].Count.Count
}

func (s *summary) add(id ID) {
	c := s.at[id]
	switch {
	case c != nil:
	case len(s.heap) < Counters:
		c = s.counter()
		c.ID = id.owned()
		s.at[c.ID] = c
	default:
		c = s.heap[0]
		delete(s.at, c.ID)
		c.ID, c.Error = id.owned(), c.Count.Count
		s.at[c.ID] = c
	}
	c.Count.Count++
	s.sink(c)
}

// counter returns a counter of 0, with its place in the heap.
func (s *summary) counter() *counter {
	if s.at == nil {
		s.heap, s.at = make([]*counter, 0, Counters), make(map[ID]*counter, Counters)
	}
	n := len(s.heap)
	s.heap = s.heap[:n+1]
	if s.heap[n] == nil {
		s.heap[n] = new(counter)
	}
	c := s.heap[n]
	c.place = n
	for c.place > 0 { // moves the counter to the top, because no count is lower
		s.swap(c, s.heap[(c.place-1)/2])
	}
	return c
}

// sink moves a counter down while a counter below it has a lower count.
func (s *summary) sink(c *counter) {
	for {
		low := c
		for child := 2*c.place + 1; child <= 2*c.place+2 && child < len(s.heap); child++ {
			if s.heap[child].Count.Count < low.Count.Count {
				low = s.heap[child]
			}
		}
		if low == c {
			return
		}
		s.swap(c, low)
	}
}

func (s *summary) swap(a, b *counter) {
	a.place, b.place = b.place, a.place
	s.heap[a.place], s.heap[b.place] = a, b
}
