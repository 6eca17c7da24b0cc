package keys

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// check fails the test unless the map has exactly these entries and its invariants hold.
func check[K comparable, V any](t *testing.T, m *Map[K, V], want map[K]*Entry[K, V]) {
	t.Helper()
	require.Equal(t, len(want), m.Len())
	for key, e := range want {
		if m.Lookup(key) != e {
			require.FailNow(t, "an entry is not found", "key %v", key)
		}
	}
	n := 0
	for e := range m.All() {
		if n++; want[e.Key] != e {
			require.FailNow(t, "an entry is yielded that is not there", "key %v", e.Key)
		}
	}
	require.Equal(t, len(want), n)
	for a := m.first.Load(); a != nil; a = a.next.Load() {
		checkArray(t, m, a, want)
	}
}

func checkArray[K comparable, V any](t *testing.T, m *Map[K, V], a *array[K, V], want map[K]*Entry[K, V]) {
	t.Helper()
	ofShard := make([]int, len(m.shards))
	for shard := range m.shards {
		all := a.all(shard)
		passed := make([]int, len(all))
		for i := range all {
			b := &all[i]
			for j := range b.slots {
				e, tag := b.slots[j].Load(), b.word.Load()>>(8*j)&0xff
				switch {
				case e == nil && tag == 0:
					continue
				case e == nil || tag != tagOf(e.hash):
					require.FailNow(t, "a slot has another tag than its entry", "tag %d", tag)
				case want[e.Key] != e:
					require.FailNow(t, "an array has an entry that was removed", "key %v", e.Key)
				case e.hash%uint64(len(m.shards)) != uint64(shard):
					require.FailNow(t, "an entry is not in its shard", "key %v", e.Key)
				}
				ofShard[shard]++
				for _, at := a.part(e.hash); at&a.mask != uint64(i); at++ {
					passed[at&a.mask]++
				}
			}
		}
		for i, want := range passed {
			if n := int(all[i].word.Load() >> 56); n < most && n != want {
				require.FailNow(t, "a bucket counts wrongly what went on", "%d, not %d", n, want)
			}
		}
	}
	for i, n := range ofShard {
		if s := &m.shards[i]; s.array == a {
			require.Equal(t, int(s.n.Load()), n, "a shard's array has all its keys")
		}
	}
}

func TestMapsOfAllSizesFindTheirKeysThroughGrowthAndShrinking(t *testing.T) {
	for _, shards := range []int{1, 2, 64} {
		for _, buckets := range []int{1, 2, 8} {
			t.Run(fmt.Sprintf("%d shards of %d buckets", shards, buckets), func(t *testing.T) {
				m, want := newMap[int, int](shards, buckets), map[int]*Entry[int, int]{}
				for key := range 8000 {
					e, added := m.Add(key, -key)
					require.True(t, added)
					want[key] = e
					if key&(key-1) == 0 || key == 3000 {
						check(t, m, want)
					}
				}
				check(t, m, want)
				largest := m.first.Load().buckets()
				for key := range 8000 {
					m.Remove(key)
					delete(want, key)
					if left := len(want); left&(left-1) == 0 {
						check(t, m, want)
					}
				}
				for range 3 * shards { // a shard sees the new array when it is written to
					e, _ := m.Add(rand.Int(), 0)
					m.RemoveEntry(e)
				}
				smallest := m.shards[0].array.buckets()
				assert.Less(t, smallest, largest/4)
				check(t, m, want)
			})
		}
	}
}

// A sweep or a loop over All removes keys shard by shard. So the last shards are full while most of the map is empty.
func TestRemovalInAnyOrderMakesArraysOfNoMoreThanTheMapsSize(t *testing.T) {
	for _, order := range []string{"by shard", "as they were added", "at random", "by shard, while keys are added"} {
		t.Run(order, func(t *testing.T) {
			m := NewMap[int, int](fewestShards * keysOfShard)
			var entries []*Entry[int, int]
			for key := range 50_000 {
				e, _ := m.Add(key, key)
				entries = append(entries, e)
			}
			if strings.HasPrefix(order, "by shard") {
				entries = slices.Collect(m.All())
			} else if order == "at random" {
				rand.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
			}
			last := newest(m)
			largest, made := last.buckets(), 0
			for i, e := range entries {
				m.RemoveEntry(e)
				if a := newest(m); a != last {
					last = a
					made += a.buckets()
				}
				if i%50 == 0 && strings.HasSuffix(order, "are added") {
					m.Add(-1-i, i)
				}
			}
			require.LessOrEqual(t, made, largest, "each array is half as large as the one before")
		})
	}
}

// A call that adds or removes a key copies its own shard and one other shard. They have few keys even if the map has many.
func TestNoCallCopiesMoreThanTwoShardsOfFewKeys(t *testing.T) {
	const n = 200_000
	m := NewMap[int, int](n)
	require.Equal(t, 512, Shards(1_000_000))
	arrays := make([]*array[int, int], len(m.shards))
	longest, calls, looks := int64(0), 0, uint64(0)
	watch := func(call func(key int), key int) {
		before, turn := m.first.Load(), m.turn.Load()
		for i := range m.shards {
			arrays[i] = m.shards[i].array
		}
		call(key)
		looks = max(looks, m.turn.Load()-turn)
		if before.next.Load() == nil {
			return // there was no new array to copy to
		}
		keys := int64(0)
		for i := range m.shards {
			if s := &m.shards[i]; s.array != arrays[i] {
				keys += s.n.Load()
			}
		}
		if keys > 0 {
			longest = max(longest, keys)
			calls++
		}
	}
	for key := range n {
		watch(func(key int) { m.Add(key, key) }, key)
	}
	require.Equal(t, n, m.Len())
	grown := calls
	require.Greater(t, grown, len(m.shards), "the map has grown several times")
	for key := range n {
		watch(m.Remove, key)
	}
	require.Greater(t, calls, grown, "and shrunk")
	require.LessOrEqual(t, longest, int64(2*keysOfShard))
	require.LessOrEqual(t, looks, uint64(helps))
}

// newest returns a map's last array.
func newest[K comparable, V any](m *Map[K, V]) *array[K, V] {
	a := m.first.Load()
	for next := a.next.Load(); next != nil; next = a.next.Load() {
		a = next
	}
	return a
}

// An array is as large as its contents require, because lookups in a large and almost empty array miss the caches.
func TestAnArrayIsAsLargeAsItsContents(t *testing.T) {
	for _, n := range []int{1, 100, 1000, 10_000, 30_000} {
		m := NewMap[int, int](fewestShards * keysOfShard)
		for key := range n {
			m.Add(key, key)
		}
		a := newest(m) // some shards may not have been written to since the last array was linked
		slots := len(a.parts) * a.buckets() * slotsInBucket
		// If few keys happen to be mostly in one shard, this shard doubles the array for all.
		assert.Less(t, slots, 5*(fewestShards*slotsInBucket+n), "%d keys", n)
		assert.Less(t, n, slots)
	}
}

func TestAShardGrowsOnceThreeQuartersOfItsSlotsAreTaken(t *testing.T) {
	m := newMap[int, int](1, 16)
	a := newest(m)
	for key := 0; newest(m) == a; key++ {
		m.Add(key, key)
	}
	assert.EqualValues(t, a.full*3/4+1, m.Len(), "the key that did not fit any more is in the next array")
	for key := range m.Len() {
		assert.Equal(t, key, m.Find(key))
	}
}

// collide adds a key with a given hash to a map.
func collide(m *Map[uint64, int], want map[uint64]*Entry[uint64, int], key, hash uint64) {
	s := m.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.makeRoomLocked(s)
	e := &Entry[uint64, int]{Key: key, hash: hash}
	s.array.insert(e)
	s.n.Add(1)
	want[key] = e
}

// All keys belong to one bucket. It fills up and passes entries on, and so do all the shard's other buckets.
func TestKeysOfOneHashFillAShardAndASearchEnds(t *testing.T) {
	for _, buckets := range []int{1, 2, 4} {
		m := newMap[uint64, int](4, buckets)
		a := m.first.Load()
		hash := m.Hash(12345)
		s := m.shard(hash)
		// There are more keys than the limit. This happens while another call links the next array.
		m.link.Lock()
		entries := make([]*Entry[uint64, int], a.full)
		for i := range entries {
			s.mu.Lock()
			m.makeRoomLocked(s)
			// Some keys begin at each of the shard's buckets, so all buckets overflow.
			entries[i] = &Entry[uint64, int]{Key: uint64(i), hash: hash + uint64(i%buckets)*4}
			s.array.insert(entries[i])
			s.n.Add(1)
			s.mu.Unlock()
		}
		m.link.Unlock()
		all := a.all(s.number)
		for i := range all {
			b := &all[i]
			require.Zero(t, matches(b.word.Load(), 0), "full")
			for range 300 { // as if many entries had gone on and some had not come back
				if word := b.word.Load(); word>>56 < most {
					b.word.Store(word + overflow)
				}
			}
		}
		require.True(t, m.Lookup(12345) == nil)
		require.Nil(t, a.find(hash, 12345))
		require.False(t, a.remove(&Entry[uint64, int]{Key: 12345, hash: hash}))
		for _, e := range entries {
			require.Same(t, e, a.find(e.hash, e.Key))
		}
		e, added := m.Add(12345, 1)
		require.True(t, added)
		require.Same(t, e, m.Lookup(12345))
		for _, e := range entries {
			require.Same(t, e, s.array.find(e.hash, e.Key), "copied")
			m.RemoveEntry(e)
			require.Nil(t, s.array.find(e.hash, e.Key))
		}
		require.Equal(t, 1, m.Len())
	}
}

func TestKeysOfEqualHashesAreKeptApart(t *testing.T) {
	m, want := newMap[uint64, int](64, 1), map[uint64]*Entry[uint64, int]{}
	for key := range uint64(500) { // more entries go on than the count can hold
		collide(m, want, key, 77)
	}
	find := func(key uint64) *Entry[uint64, int] { return m.shard(77).array.find(77, key) }
	for key, e := range want {
		require.Same(t, e, find(key))
	}
	for key, e := range want {
		m.RemoveEntry(e)
		require.Nil(t, find(key))
	}
	require.Zero(t, m.Len())
}

// Several goroutines add, remove and find their own keys, and read other goroutines' keys.
// A key still in the map is always found. A key removed by its only writer is never found.
func TestRandomHistoriesOfManyGoroutinesAgreeWithAModel(t *testing.T) {
	for _, size := range []struct{ shards, buckets int }{{1, 1}, {1, 2}, {64, 1}, {64, 2}, {4, 1}} {
		for _, keys := range []int{40, 2000} {
			t.Run(fmt.Sprintf("%d shards of %d buckets, %d keys", size.shards, size.buckets, keys), func(t *testing.T) {
				history(t, newMap[int, int](size.shards, size.buckets), keys)
			})
		}
	}
}

func history(t *testing.T, m *Map[int, int], keys int) {
	const writers, rounds, readers = 3, 4, 2
	stays := make([]*Entry[int, int], keys/4) // these stay in the map from the beginning
	for i := range stays {
		stays[i], _ = m.Add(-1-i, i)
	}
	var failed atomic.Bool
	fail := func(format string, args ...any) {
		if failed.CompareAndSwap(false, true) {
			t.Errorf(format, args...)
		}
	}
	models := make([]map[int]*Entry[int, int], writers)
	var done atomic.Bool
	var writing, reading sync.WaitGroup
	for w := range writers {
		models[w] = map[int]*Entry[int, int]{}
		writing.Go(func() {
			r := rand.New(rand.NewPCG(uint64(keys), uint64(w)))
			for round := range rounds {
				grow := round%2 == 0
				for range 2 * keys {
					key := w + writers*r.IntN(keys)
					model := models[w]
					switch e := m.Lookup(key); {
					case e != model[key]:
						fail("key %d: found %v, not %v", key, e, model[key])
						return
					case e != nil && r.IntN(8) == 0 == grow:
						if r.IntN(2) == 0 {
							m.Remove(key)
						} else {
							m.RemoveEntry(e)
						}
						m.RemoveEntry(e) // a second call does nothing
						delete(model, key)
					case e == nil && r.IntN(8) == 0 != grow:
						e, added := m.Add(key, key)
						if again, twice := m.Add(key, -1); !added || twice || again != e {
							fail("key %d is added twice", key)
						}
						model[key] = e
					}
				}
			}
		})
	}
	for range readers {
		reading.Go(func() {
			r := rand.New(rand.NewPCG(rand.Uint64(), 0))
			for !done.Load() && !failed.Load() {
				for range 20 {
					if i := r.IntN(len(stays)); m.Lookup(-1-i) != stays[i] {
						fail("key %d is lost", -1-i)
					}
				}
				key := 1 + r.IntN(writers*keys)
				if v := m.Find(key); v != 0 && v != key {
					fail("key %d has the value %d of another", key, v)
				}
			}
		})
	}
	reading.Go(func() { // All yields each lasting key exactly once
		for !done.Load() && !failed.Load() {
			seen := map[int]int{}
			for e := range m.All() {
				seen[e.Key]++
			}
			for i := range stays {
				if seen[-1-i] != 1 {
					fail("key %d is yielded %d times", -1-i, seen[-1-i])
				}
			}
			for key, n := range seen {
				if n > 1 {
					fail("key %d is yielded %d times", key, n)
				}
			}
		}
	})
	writing.Wait()
	done.Store(true)
	reading.Wait()
	want := map[int]*Entry[int, int]{}
	for i, e := range stays {
		want[-1-i] = e
	}
	for _, model := range models {
		for key, e := range model {
			want[key] = e
		}
	}
	if !t.Failed() {
		check(t, m, want)
	}
}

// If all goroutines add the same key at the same time, it has one entry.
func TestAKeyThatManyAddHasOneEntry(t *testing.T) {
	m := newMap[int, int](64, 1)
	for key := range 2000 {
		var entries [4]*Entry[int, int]
		var added atomic.Int32
		var wg sync.WaitGroup
		for g := range entries {
			wg.Go(func() {
				e, first := m.Add(key, g)
				if entries[g] = e; first {
					added.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, added.Load())
		for _, e := range entries {
			require.Same(t, m.Lookup(key), e)
		}
	}
}

func TestATagIsNeverThatOfAnEmptySlot(t *testing.T) {
	assert.EqualValues(t, 1, tagOf(0))
	assert.EqualValues(t, 0xff, tagOf(math.MaxUint64))
	for range 10_000 {
		word, tag := rand.Uint64()&rand.Uint64(), tagOf(rand.Uint64())
		found := matches(word, tag)
		for i := range slotsInBucket {
			if word>>(8*i)&0xff == tag {
				require.NotZero(t, found>>(8*i)&0x80)
			}
		}
		require.Zero(t, found>>56, "the count is no tag")
	}
}
