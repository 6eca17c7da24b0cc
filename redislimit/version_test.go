package redislimit

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// While a program is rolled out, two versions of the scripts use the same keys. The scripts in
// testdata/version1 have no lowered limits: see TestAnOlderVersionLeavesUnknownStatesAlone.
func TestTwoVersionsOfTheScriptsShareAState(t *testing.T) {
	verdicts(t)
	version1 := newScripts(os.DirFS("testdata/version1"))
	client := startServer(t).client()
	for i, limit := range twinLimits() {
		for seed := range histories(3) {
			w := newTwin(t, client, limit, fmt.Sprintf("versions%d-%d", i, seed), uint64(seed))
			w.booking = kinds[limit.Algorithm] != kindLog // version 1 leaves a log's bookings to its general script
			w.solvent = limit.Algorithm <= ratelimit.AlgorithmLeakyBucket
			for n := range 120 {
				w.silent = kinds[limit.Algorithm] == kindLog // version 1 does not report its debt and its next unit
				w.remote.store.scripts = []*scripts{version1, current}[w.rng.IntN(2)]
				w.step(n)
			}
		}
	}
}

// States with units set aside, and of buckets in debt, have their own format. The older version refuses them and leaves them
// as they are. Once the units have lapsed, or the debt is paid, the next spending stores the format known to both versions.
func TestAnOlderVersionLeavesUnknownStatesAlone(t *testing.T) {
	version1 := newScripts(os.DirFS("testdata/version1"))
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		for _, lowered := range []bool{true, false} {
			l := f.limiter(limit, fmt.Sprint(limit.Name, lowered))
			if lowered {
				require.True(t, l.Allow("k", 10))
				f.clock.Advance(time.Second)
				lower := limit
				lower.Rate.Units, lower.Burst = 2, min(2, limit.Burst)
				require.NoError(t, l.SetLimit(lower))
				require.NoError(t, l.Adjust(t.Context(), "k", -1))
				require.True(t, l.Allow("k", 1))
			} else {
				require.NoError(t, l.Adjust(t.Context(), "k", 15))
			}
			before := f.client.Get(t.Context(), l.space.key("k")).Val()
			l.store.scripts = version1
			_, err := l.Take(t.Context(), "k", 1)
			if !lowered && limit.Algorithm > ratelimit.AlgorithmLeakyBucket {
				require.NoError(t, err, "the debt of a window shows in its state")
				continue
			}
			require.ErrorIs(t, err, errForeignState, "%v", limit)
			require.ErrorIs(t, l.Adjust(t.Context(), "k", 1), errForeignState)
			require.Equal(t, before, f.client.Get(t.Context(), l.space.key("k")).Val())
			f.clock.Advance(3 * time.Minute)
			l.store.scripts = current
			require.True(t, l.Allow("k", 1), "%v", limit)
			l.store.scripts = version1
			require.True(t, l.Allow("k", 1), "%v", limit)
		}
	}
}

func TestAnOlderVersionLeavesUnitsInUseAlone(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.Concurrent(2, time.Minute).Named("held"), "held")
	r, err := l.Reserve(t.Context(), "k", 2, 0)
	require.NoError(t, err)
	older := f.limiter(ratelimit.TokenBucket(ratelimit.PerMinute(5), 5).Named("held"), "held")
	older.store.scripts = newScripts(os.DirFS("testdata/version1"))
	_, err = older.Take(t.Context(), "k", 1)
	require.ErrorIs(t, err, errForeignState)
	require.ErrorIs(t, older.Adjust(t.Context(), "k", 1), errForeignState)
	require.NoError(t, r.Extend(t.Context()))
	require.NoError(t, r.Cancel())
}

// The older version stores a bucket in debt as one with a larger burst. It is read as such: at most the capacity counts.
func TestADebtOfAnOlderVersionCountsAsALoweredLimit(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits()[:2] {
		l := f.limiter(limit, limit.Name)
		l.store.scripts = newScripts(os.DirFS("testdata/version1"))
		require.NoError(t, l.Adjust(t.Context(), "k", 15))
		l.store.scripts = current
		for _, cost := range []int{0, 1} {
			d, err := l.Peek(t.Context(), "k", cost)
			require.NoError(t, err)
			assert.Equal(t, time.Minute, d.ResetAfter, "%v", limit)
		}
	}
}

// A later format has another first byte.
func TestAStateOfALaterVersionIsLeftAlone(t *testing.T) {
	f := newFixture(t)
	for i, limit := range append(fiveLimits(), fiveLimits()...) {
		l := f.real(limit)
		require.NoError(t, l.Reset(t.Context(), "k"))
		require.True(t, l.Allow("k", 3))
		for range i / len(fiveLimits()) * 20 { // makes a long state
			_, err := l.Reserve(t.Context(), "k", 10, time.Hour)
			require.NoError(t, err)
		}
		later := []byte(f.client.Get(t.Context(), l.space.key("k")).Val())
		later[0] -= 0x10
		require.NoError(t, f.client.Set(t.Context(), l.space.key("k"), later, time.Hour).Err())
		_, err := l.Take(t.Context(), "k", 1)
		assert.ErrorIs(t, err, errForeignState)
		assert.ErrorContains(t, err, "version")
		assert.ErrorIs(t, l.Adjust(t.Context(), "k", 1), errForeignState)
		assert.Equal(t, string(later), f.client.Get(t.Context(), l.space.key("k")).Val())
	}
}
