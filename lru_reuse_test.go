package ratelimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// A new key gets the entry of the key leaving the full table.
func TestANewKeyInAFullTableAllocatesNothing(t *testing.T) {
	testsize.Sequential(t)
	type pair struct {
		name string
		n    int
	}
	newKeysAllocateNothing(t, "string", func(i int) string { return fmt.Sprintf("198.51.100.%d", i) })
	newKeysAllocateNothing(t, "long string", func(i int) string { return fmt.Sprintf("%s%d", strings.Repeat("x", 70), i) })
	newKeysAllocateNothing(t, "integer", func(i int) uint64 { return uint64(i) })
	newKeysAllocateNothing(t, "array", func(i int) [16]byte { return [16]byte{byte(i), byte(i >> 8), byte(i >> 16)} })
	newKeysAllocateNothing(t, "address", func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) })
	newKeysAllocateNothing(t, "struct", func(i int) pair { return pair{fmt.Sprint("user ", i%7), i} })
}

func newKeysAllocateNothing[K comparable](t *testing.T, name string, key func(int) K) {
	const most, runs = 500, 4000
	all := make([]K, most+2*runs+10)
	for i := range all {
		all[i] = key(i)
	}
	for kind, opts := range map[string]Options[K]{"": {}, "remember": {Remember: len(all)}} {
		opts.MaxKeys = most
		l := Must(New(TokenBucket(PerHour(5), 5), &opts))
		next := 0
		take := func() { l.Allow(all[next], 1); next++ }
		for range most {
			take()
		}
		require.EqualValues(t, most, l.Stats().Keys)
		assert.Zero(t, testing.AllocsPerRun(runs, take), "%s %s: Allow", name, kind)
		assert.Zero(t, testing.AllocsPerRun(runs, func() { _, _ = l.Take(context.Background(), all[next], 1); next++ }), "%s %s: Take", name, kind)
		require.EqualValues(t, most, l.Stats().Keys)
	}
}

// The keys yielded by All and Saved belong to the caller.
func TestYieldedKeysStayWhenTheirEntriesAreAnotherKeys(t *testing.T) {
	l := Must(New[string](TokenBucket(PerHour(5), 5), &Options[string]{MaxKeys: 50}))
	want := map[string]bool{}
	for i := range 50 {
		l.Allow(fmt.Sprint("old ", i), 1)
		want[fmt.Sprint("old ", i)] = true
	}
	var yielded []string
	for key := range l.All() {
		yielded = append(yielded, key)
	}
	for key := range l.Saved() {
		yielded = append(yielded, key)
	}
	for i := range 200 {
		l.Allow(fmt.Sprint("new ", i), 1)
	}
	require.Len(t, yielded, 100)
	for _, key := range yielded {
		require.True(t, want[key], key)
	}
}

// interrupting is a stopped clock. At its next reading it calls a function.
type interrupting struct{ now func() }

func (c *interrupting) Now() time.Duration {
	if f := c.now; f != nil {
		c.now = nil
		f()
	}
	return 0
}

// A decision has found its key's entry, and reads the clock. When it locks
// the account, the entry belongs to another key without remaining budget.
func TestADecisionWhoseEntryBecomesAnotherKeysIsItsOwnKeys(t *testing.T) {
	ctx := context.Background()
	for name, call := range map[string]func(l *Keyed[string], key string) (d Decision){
		"Take":  func(l *Keyed[string], key string) Decision { d, _ := l.Take(ctx, key, 1); return d },
		"Peek":  func(l *Keyed[string], key string) Decision { d, _ := l.Peek(ctx, key, 1); return d },
		"Allow": func(l *Keyed[string], key string) Decision { return Decision{Allowed: l.Allow(key, 1)} },
		"Reserve": func(l *Keyed[string], key string) Decision {
			r, _ := l.Reserve(ctx, key, 1, 0)
			return r.Decision
		},
		"Wait": func(l *Keyed[string], key string) Decision { return Decision{Allowed: l.Wait(ctx, key, 1) == nil} },
	} {
		clock := new(interrupting)
		l := Must(New[string](TokenBucket(PerHour(2), 2), &Options[string]{MaxKeys: 1, Clock: clock}))
		require.True(t, l.Allow("mine", 1))
		e := l.keys.accounts.Candidate("mine")
		clock.now = func() { require.True(t, l.Allow("another", 2)) }
		d := call(l, "mine")
		require.True(t, d.Allowed, "%s: the other key has nothing left", name)
		require.Nil(t, clock.now, name)
		if name == "Peek" {
			require.Equal(t, "another", e.Key, "the entry has changed hands")
			require.Equal(t, 2, d.Remaining)
		}
		d, err := l.Peek(ctx, "mine", 1)
		require.NoError(t, err)
		if name != "Peek" {
			require.Equal(t, 1, d.Remaining, name)
		}
	}
}

// Reservations and waiting calls refer to the account, so it stays with its key.
func TestAReservationOfAnEvictedKeySettlesNoOtherKeys(t *testing.T) {
	l := Must(New[string](TokenBucket(PerHour(5), 5), &Options[string]{MaxKeys: 8}))
	ctx := t.Context()
	var open []*Reservation
	for i := range 400 {
		key := fmt.Sprint("reserved ", i)
		r, err := l.Reserve(ctx, key, 3, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		open = append(open, r)
		require.True(t, l.Allow(fmt.Sprint("other ", i), 4))
	}
	before := map[string]int{}
	for key, d := range l.All() {
		before[key] = d.Remaining
	}
	require.Len(t, before, 8)
	for _, r := range open[:380] {
		require.NoError(t, r.Cancel())
	}
	for key, d := range l.All() {
		require.Equal(t, before[key], d.Remaining, key)
	}
}

// A stack reads accounts before it locks them, so its limiters' accounts stay with their keys.
func TestAccountsOfALimiterInAStackStayWithTheirKeys(t *testing.T) {
	l := Must(New[string](TokenBucket(PerHour(5), 5), &Options[string]{MaxKeys: 8}))
	fill := func() {
		for i := range 20 {
			l.Allow(fmt.Sprint("key ", i), 1)
		}
	}
	fill()
	stack, err := All(By(l, func(k string) (string, error) { return k, nil }))
	require.NoError(t, err)
	require.True(t, stack.Allow("mine", 1))
	e := l.keys.accounts.Lookup("mine")
	fill()
	fill()
	require.Nil(t, l.keys.find("mine"))
	require.Equal(t, "mine", e.Key)
	require.Nil(t, e.Value.plan)
}

// The system may stop a call's thread between taking the last room and inserting its key. New keys
// wait for that call. A stack's keys do not, because the stack's other keys are pinned meanwhile.
func TestANewKeyWaitsForACallThatHasTakenTheLastRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Must(New[string](TokenBucket(PerDay(1), 1), &Options[string]{MaxKeys: 1}))
		require.True(t, l.keys.reserve())
		timed := func(allow func() bool) (bool, time.Duration) {
			begin := time.Now()
			allowed := allow()
			return allowed, time.Since(begin)
		}
		alone := func() bool { return l.Allow("new", 1) }
		allowed, took := timed(alone)
		require.False(t, allowed)
		require.InDelta(t, 100*time.Millisecond, took, float64(5*time.Millisecond))

		stack, err := All(By(l, func(k string) (string, error) { return k, nil }))
		require.NoError(t, err)
		allowed, took = timed(func() bool { return stack.Allow("new", 1) })
		require.False(t, allowed)
		require.Zero(t, took)

		time.AfterFunc(50*time.Millisecond, func() { l.keys.release(true) })
		allowed, took = timed(alone)
		require.True(t, allowed)
		require.InDelta(t, 50*time.Millisecond, took, float64(5*time.Millisecond))
		require.Equal(t, Stats{Keys: 1, Refused: 2}, l.Stats())
	})
}

// Thousands of callers use more keys than the table holds. Each key has its own limit, and each decision names its own
// key's. The table remembers evicted keys, so none exceeds its capacity, even if its account often passed to other keys.
func TestEntriesThatChangeHandsMixNoKeysUp(t *testing.T) {
	for _, most := range []int{3, 40, 5000} {
		universe := 4 * most
		capacity := func(key string) int { return 3 + len(key)%5 + int(key[len(key)-1]-'0') }
		limitFor := func(key string) Limit { return TokenBucket(PerDay(1), capacity(key)).Named("k" + key) }
		l := Must(New(TokenBucket(PerDay(1), 1), &Options[string]{MaxKeys: most, Remember: 2*universe + 1000, LimitFor: limitFor, Clock: new(stoppedClock)}))
		names := make([]string, universe)
		passed := make([]atomic.Int64, universe)
		for i := range names {
			names[i] = strings.Repeat("x", i%60) + fmt.Sprint(i)
			if i%9 == 0 {
				names[i] = strings.Repeat("y", 120) + fmt.Sprint(i) // each text has its own memory
			}
		}
		var wg sync.WaitGroup
		callers := testsize.Of(400, 4000)
		for c := range callers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(c), uint64(most)))
				for range 60 {
					i := r.IntN(universe)
					if r.IntN(3) > 0 {
						i = r.IntN(min(universe, 1+most/2)) // to include known keys often
					}
					key := names[i]
					switch r.IntN(12) {
					case 0:
						d, err := l.Peek(context.Background(), key, 1)
						assert.NoError(t, err)
						assert.Equal(t, limitFor(key), d.Limit)
					case 1:
						res, err := l.Reserve(context.Background(), key, 1, 0)
						assert.NoError(t, err)
						if res.Allowed {
							passed[i].Add(1)
						}
						if r.IntN(2) == 0 {
							assert.NoError(t, res.Settle(1))
						}
					case 2:
						for k, d := range l.All() {
							if !assert.Equal(t, limitFor(k), d.Limit) || r.IntN(4) == 0 {
								break
							}
						}
					case 3:
						ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
						if l.Wait(ctx, key, 1) == nil {
							passed[i].Add(1)
						}
						cancel()
					case 4:
						l.Refresh(key)
					case 5, 6, 7, 8:
						d, err := l.Take(context.Background(), key, 1)
						assert.NoError(t, err)
						assert.Equal(t, limitFor(key), d.Limit)
						if d.Allowed {
							passed[i].Add(1)
						}
					default:
						if l.Allow(key, 1) {
							passed[i].Add(1)
						}
					}
				}
			})
		}
		wg.Wait()
		require.LessOrEqual(t, l.Stats().Keys, most)
		full := 0
		for i := range passed {
			n := int(passed[i].Load())
			require.LessOrEqual(t, n, capacity(names[i]), "%d keys: %q", most, names[i])
			if n == capacity(names[i]) {
				full++
			}
		}
		require.Positive(t, full)
		require.Positive(t, l.Stats().Evicted)
	}
}

// stoppedClock always returns the same reading.
type stoppedClock struct{}

func (*stoppedClock) Now() time.Duration { return 0 }
