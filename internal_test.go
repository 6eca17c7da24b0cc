package ratelimit

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/meter"
)

// A new algorithm needs a plan. Without one, this test panics.
func TestEveryAlgorithmHasAPlan(t *testing.T) {
	for a := range algorithmNames {
		l := Limit{Algorithm: Algorithm(a), Rate: PerSecond(10)}
		switch l.Algorithm {
		case 0:
			continue
		case AlgorithmTokenBucket, AlgorithmLeakyBucket:
			l.Burst = 10
		case AlgorithmUnlimited, AlgorithmBlocked:
			l.Rate = Rate{}
		case AlgorithmCalendar:
			l = Calendar(10, Day("UTC"))
		}
		p, err := newPlan(l, 0, &calendars{clock: systemClock{}})
		require.NoError(t, err, l)
		untracked := l.Algorithm == AlgorithmUnlimited || l.Algorithm == AlgorithmBlocked
		require.Equal(t, !untracked, p.tracks(), l)
	}
}

func TestAnOrdinaryCostIsFromOneToTheCapacity(t *testing.T) {
	for _, capacity := range []int64{1, 5, math.MaxInt} {
		p := &plan{capacity: capacity, takes: capacity}
		for _, cost := range []int{math.MinInt, -5, -1, 0, 1, 2, 4, 5, 6, math.MaxInt - 1, math.MaxInt} {
			assert.Equal(t, cost >= 1 && int64(cost) <= capacity, p.ordinary(cost), "%d of %d", cost, capacity)
		}
	}
}

func TestAnAccountIsACacheLine(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 {
		assert.EqualValues(t, 64, unsafe.Sizeof(account{}))
	}
}

// Two keys with equal lines and tags share a slot. The slot remembers the higher share, and the later end.
func TestKeysThatShareASlotAreBothRemembered(t *testing.T) {
	p, err := newPlan(FixedWindow(PerMinute(100)), 0, nil)
	require.NoError(t, err)
	const hash = 0x1234_5678_9abc_def0
	for _, start := range []int64{-int64(10 * time.Hour), 0, maxReading, -maxReading} {
		m := newMemory(100, start, nil)
		one := meter.Remembered{Until: start + int64(20*time.Second), Share: 200}
		other := meter.Remembered{Until: start + int64(30*time.Second), Share: 10}
		m.store(hash, p, one, start)
		require.Equal(t, one, m.recall(hash, p, start))
		m.store(hash, p, other, start)
		require.Equal(t, meter.Remembered{Until: other.Until, Share: 200}, m.recall(hash, p, start))
		m.store(hash, p, one, start)
		require.Equal(t, meter.Remembered{Until: other.Until, Share: 200}, m.recall(hash, p, start))
		require.Zero(t, m.recall(hash^1<<50, p, start), "another tag")
		require.Zero(t, m.recall(hash, p, other.Until), "it is over")
		m.takeOut(hash)
		require.Zero(t, m.recall(hash, p, start))
	}
}

// Random slots and a random clock never make a call panic. The memory
// recalls a key's last spending, or has counted a key as forgotten.
func TestAMemoryOfGarbage(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	dates := &calendars{clock: systemClock{}}
	p, err := newPlan(SlidingCounter(PerMinute(100)), 0, dates)
	require.NoError(t, err)
	dated, err := newPlan(Calendar(100, Day("America/New_York")), 0, dates)
	require.NoError(t, err)
	any64 := func() int64 { return int64(r.Uint64()) >> r.IntN(64) }
	for range 3000 {
		m := newMemory(1+r.IntN(20), max(-maxReading, min(any64(), maxReading)), dates)
		for i := range m.lines {
			for j := range m.lines[i] {
				m.lines[i][j].Store(r.Uint64() >> r.IntN(40))
			}
		}
		now := max(-maxReading, min(any64(), maxReading-1)) // no instant follows the last reading
		hash := r.Uint64()
		past := meter.Remembered{Until: max(now, m.start) + 1 + r.Int64N(1<<r.IntN(50)), Share: uint8(1 + r.IntN(255))}
		before := m.overflowed.Load()
		m.store(hash, p, past, now)
		if m.overflowed.Load() == before {
			require.True(t, p.Covers(m.recall(hash, p, now), m.unpack(m.pack(past, 0))), "%+v at %d, from %d on", past, now, m.start)
		}
		m.changed.Store(true)
		for _, p := range []*plan{p, dated} {
			u := unseen{floor: now, memory: m, hash: hash}
			at, s := u.begin(p, now, false)
			require.Equal(t, now, at)
			require.True(t, p.wall != nil || p.Regained(s) <= max(now, min(now+int64(p.limit.RefillTime()), maxReading)))
		}
		m.takeOut(hash)
		require.Zero(t, m.recall(hash, p, now))
	}
}

func TestSlotsStoreInstantsRoundedUp(t *testing.T) {
	m := newMemory(1, 0, nil)
	for until, want := range map[int64]int64{
		1: slotTick, slotTick: slotTick, slotTick + 1: 2 * slotTick,
		(slotNever - 1) * slotTick: (slotNever - 1) * slotTick, (slotNever-1)*slotTick + 1: maxReading, math.MaxInt64: maxReading,
	} {
		require.Equal(t, meter.Remembered{Until: want, Share: 7}, m.unpack(m.pack(meter.Remembered{Until: until, Share: 7}, 3)))
	}
	require.Zero(t, m.pack(meter.Remembered{Until: 0, Share: 7}, 3))
}

// orderOf returns an order of n entries, and the entries by key.
func orderOf(n int) (*order[int], []*entry[int]) {
	o, entries := new(order[int]), make([]*entry[int], n)
	for i := range entries {
		entries[i] = &entry[int]{Key: i}
		o.add(entries[i], 0)
	}
	return o, entries
}

// bury turns the key's place into a tombstone, and counts the places examined meanwhile.
func bury(o *order[int], entries []*entry[int], key int) (looks int) {
	entries[key] = nil
	o.addTombstone(func(e *entry[int]) bool {
		looks++
		return entries[e.Key] == e
	})
	return looks
}

// keysIn returns the keys in the runs, the oldest first, without the buried ones.
func keysIn(runs [][]*entry[int], entries []*entry[int]) (found []int) {
	for _, run := range runs {
		for _, e := range run {
			if e != nil && entries[e.Key] == e {
				found = append(found, e.Key)
			}
		}
	}
	return found
}

// Burying a place takes constant time on average, in any order and with any number of
// tombstones. Otherwise a sweep or many resets would rebuild the order for each key.
func TestToBuryAllPlacesIsLinearWork(t *testing.T) {
	const n = 20_000
	for name, key := range map[string]func(i int) int{
		"oldest first": func(i int) int { return i },
		"newest first": func(i int) int { return n - 1 - i },
		"mixed":        func(i int) int { return i * 7919 % n },
	} {
		t.Run(name, func(t *testing.T) {
			o, entries := orderOf(n)
			looks := 0
			for i := range n {
				looks += bury(o, entries, key(i))
				require.LessOrEqual(t, looks, 10*n, "after %d burials", i+1)
			}
			require.LessOrEqual(t, o.n, blockSize+1, "dead places do not stay")
		})
	}
}

// Keys that come and go keep a bounded number of tombstones.
func TestTombstonesAreFewerThanKeys(t *testing.T) {
	const n = 1000
	o, entries := orderOf(n)
	looks := 0
	for i := range 20 * n {
		looks += bury(o, entries, i)
		entries = append(entries, &entry[int]{Key: len(entries)})
		o.add(entries[n+i], 0)
		require.LessOrEqual(t, o.tombstones, o.n/4+blockSize)
		require.LessOrEqual(t, o.n, n*4/3+2*blockSize)
	}
	require.LessOrEqual(t, looks, 20*n*10)
	living := keysIn(o.runs(), entries)
	require.Len(t, living, n)
	require.IsIncreasing(t, living)
}

// A rebuild of the order once lost the number of readers while one goroutine was reading.
// The number became negative, and the next reader's places were overwritten while it read.
func TestReadersKeepTheirPlacesWhenTheOrderIsBuiltAnew(t *testing.T) {
	const n = 20 * blockSize
	o, entries := orderOf(n)
	o.readers++ // one sweep is under way
	for key := range n / 2 {
		bury(o, entries, key)
	}
	require.Less(t, o.n, n, "the order has been built anew")
	require.Equal(t, 1, o.readers)
	runs := o.runs()
	want := keysIn(runs, entries)
	for key := n; key < 2*n; key++ { // as other goroutines evict and add keys between a sweep's steps
		_, ok := o.take()
		require.True(t, ok)
		entries = append(entries, &entry[int]{Key: len(entries)})
		o.add(entries[key], 0)
	}
	for _, key := range keysIn(runs[1:], entries) {
		require.Contains(t, want, key, "the place of a key that came later is not in the runs")
	}
	require.Subset(t, keysIn(runs[1:], entries), want[2*blockSize:], "no place is lost while it is read")
	o.readers--
	require.Zero(t, o.readers)
}

func TestASweepThatDropsManyKeysLeavesNoReaders(t *testing.T) {
	clock := clockAt(0)
	l := Must(New(FixedWindow(PerSecond(1)), &Options[int]{Clock: &clock}))
	for round := range 3 {
		for key := range 1000 {
			require.True(t, l.Allow(key, 1))
		}
		clock += clockAt(time.Hour)
		require.Equal(t, 1000, l.Sweep(), "round %d", round)
		for i := range l.keys.shards {
			require.Zero(t, l.keys.shards[i].order.readers)
		}
	}
}

// clockAt is a clock set by hand, by one goroutine.
type clockAt time.Duration

func (c *clockAt) Now() time.Duration { return time.Duration(*c) }

// If all keys are busy, the table returns one of them. A new key waits for it without holding the shard.
// Otherwise the new key would try again and again, and might be refused before another goroutine runs.
func TestATableRemembersTheBusyKeyInItsWay(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 3} {
		clock := clockAt(0)
		l := Must(New(FixedWindow(PerHour(1)), &Options[int]{Clock: &clock, MaxKeys: maxKeys}))
		for key := range maxKeys {
			require.True(t, l.Allow(key, 1))
			l.keys.find(key).mu.Lock()
		}
		s := &l.keys.shards[0]
		for range 3 {
			s.mu.Lock()
			ok, busy := l.keys.evictLocked(s, 0)
			s.mu.Unlock()
			require.False(t, ok, "every key is busy")
			require.NotNil(t, busy)
			require.Same(t, l.keys.find(busy.Key), &busy.Value)
		}
		for key := range maxKeys {
			l.keys.find(key).mu.Unlock()
		}
		s.mu.Lock()
		ok, busy := l.keys.evictLocked(s, 0)
		s.mu.Unlock()
		require.True(t, ok, "none is busy any more")
		require.Nil(t, busy)
	}
}

// A refusal examines a bounded number of keys, even if many were used since
// their entries were made. The next refusal continues where this one stopped.
func TestARefusalLooksAtABoundedNumberOfKeysAndTheNextOnesAtTheOthers(t *testing.T) {
	const n = 10 * mostLooks
	clock := clockAt(0)
	l := Must(New(FixedWindow(PerMinute(5)), &Options[int]{Clock: &clock, MaxKeys: n, OnFull: RefuseNew}))
	spend := func() {
		for key := range n {
			require.True(t, l.Allow(key, 1))
		}
	}
	due := func() (due int) {
		h := &l.keys.expiry.heap
		for i := range h.n {
			if h.at(i).at <= int64(clock.Now()) {
				due++
			}
		}
		return due
	}
	spend()
	for round := range 3 {
		clock += clockAt(61 * time.Second)
		spend()
		before := due()
		require.Equal(t, n, before, "round %d: all were used since", round)
		for before > 0 {
			require.False(t, l.Allow(-1, 1))
			after := due()
			require.Equal(t, mostLooks, before-after)
			before = after
		}
	}
	// A grant lists its key as perhaps fresh. Of all keys only n/2 is.
	for key := range n {
		require.True(t, l.Allow(key, 2))
	}
	for key := n - 1; key >= 0; key-- {
		require.NoError(t, l.Adjust(context.Background(), key, -1))
	}
	require.NoError(t, l.Adjust(context.Background(), n/2, -2))
	refusals := 0
	for ; !l.Allow(-1, 1); refusals++ {
		require.LessOrEqual(t, l.keys.expiry.dirty.n, n-mostLooks*(1+refusals))
		require.Less(t, refusals, n/mostLooks, "the key that is fresh is found")
	}
	require.Nil(t, l.keys.find(n/2))
	require.Equal(t, n, l.Stats().Keys)
}

// A new key may make a shard rebuild its order, or examine all its keys. A large table has enough shards to keep both short.
func TestTheShardsOfALargeTableHaveFewKeys(t *testing.T) {
	testsize.Arithmetic(t)
	const n = 300_000
	clock := clockAt(0)
	l := Must(New(FixedWindow(PerSecond(1)), &Options[int]{Clock: &clock, MaxKeys: n, OnFull: RefuseNew}))
	places := 0
	for key := range 2 * n {
		if key == n {
			clock += clockAt(2 * time.Second) // all keys are fresh, so each new key replaces one
		}
		require.True(t, l.Allow(key, 1))
		if key%1000 == 0 {
			for i := range l.keys.shards {
				places = max(places, l.keys.shards[i].order.n)
			}
		}
	}
	require.Equal(t, n, l.Stats().Keys)
	require.LessOrEqual(t, places, 3000)
}

// A list of pages returns each key once, also after it has grown and shrunk.
func TestADirtyListReturnsEachKeyOnce(t *testing.T) {
	var d dirtyList
	listed := map[*account]bool{}
	r := rand.New(rand.NewPCG(58, 1))
	var buf [dirtyPage + 100]*account
	for step := range 20_000 {
		if step/5000%2 == 0 || r.IntN(500) > 0 {
			b := new(account)
			d.add(b)
			listed[b] = true
		} else {
			want := min(d.n, 1+r.IntN(len(buf)))
			taken := d.take(buf[:want])
			require.Len(t, taken, want)
			for _, b := range taken {
				require.True(t, listed[b])
				delete(listed, b)
			}
		}
		require.Equal(t, len(listed), d.n)
		require.LessOrEqual(t, len(d.pages), d.n/dirtyPage+2)
	}
	for d.n > 0 {
		for _, b := range d.take(buf[:]) {
			require.True(t, listed[b])
			delete(listed, b)
		}
	}
	require.Empty(t, listed)
	require.Empty(t, d.take(buf[:]))
	require.Len(t, d.pages, 1)
	require.Equal(t, [dirtyPage]*account{}, *d.pages[0], "it keeps no key in memory")
}

// A heap of pages returns its entries in order after it has grown and
// shrunk, even if entries were removed or moved to an earlier instant.
func TestADueHeapReturnsTheEarliestFirst(t *testing.T) {
	var h dueHeap[int]
	r := rand.New(rand.NewPCG(51, 7))
	in := map[*dueKey[int]]int64{}
	any := func() *dueKey[int] { return h.at(r.IntN(h.n)).key }
	most := 0
	for step := range 60_000 {
		switch grow := step/15_000%2 == 0; {
		case h.n == 0 || grow && r.IntN(4) > 0:
			d := new(dueKey[int])
			in[d] = int64(r.IntN(1000))
			h.push(in[d], d)
		case r.IntN(3) == 0:
			d := any()
			in[d] = -1
			h.at(d.place).at = -1
			h.up(d.place)
		default:
			d := any()
			if r.IntN(2) == 0 {
				d = h.at(0).key
				for _, at := range in {
					if at < in[d] {
						require.Fail(t, "an earlier entry is not the first")
					}
					break // the range begins at random, so one entry suffices
				}
			}
			h.remove(d.place)
			require.Equal(t, taken, d.place)
			delete(in, d)
		}
		require.Equal(t, len(in), h.n)
		most = max(most, h.n)
		require.LessOrEqual(t, len(h.pages), h.n/duePage+2)
	}
	require.Greater(t, most, 3*duePage)
	last := int64(math.MinInt64)
	for h.n > 0 {
		e := *h.at(0)
		require.Equal(t, in[e.key], e.at)
		require.GreaterOrEqual(t, e.at, last)
		last = e.at
		h.remove(0)
	}
	require.LessOrEqual(t, len(h.pages), 2)
}

// A request denied by another layer does not wait for the account shared by all requests.
func TestADenialByAnotherLayerLeavesTheSharedAccountAlone(t *testing.T) {
	clock := clockAt(0)
	all := Must(New(FixedWindow(PerHour(10)), &Options[struct{}]{Clock: &clock}))
	users := Must(New(FixedWindow(PerHour(1)), &Options[string]{Clock: &clock}))
	l := Must(All(Global[string](all), By(users, func(user string) (string, error) { return user, nil })))
	require.True(t, l.Allow("ann", 1))
	a := all.keys.find(struct{}{})
	a.mu.Lock()
	require.False(t, l.Allow("ann", 1), "would wait for ever")
	a.mu.Unlock()
	d, err := l.Take(t.Context(), "ann", 1)
	require.NoError(t, err)
	require.Equal(t, time.Hour, d.RetryAfter)
	d, err = all.Peek(context.Background(), struct{}{}, 1)
	require.NoError(t, err)
	require.Equal(t, 9, d.Remaining)
}
