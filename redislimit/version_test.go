package redislimit

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// While a program is rolled out, two versions of the scripts work on the same keys. Those in
// testdata/version1 are the first that were published; the format of a state is theirs still.
func TestTwoVersionsOfTheScriptsShareAState(t *testing.T) {
	verdicts(t)
	version1 := newScripts(os.DirFS("testdata/version1"))
	client := startServer(t).client()
	for i, limit := range twinLimits() {
		for seed := range histories(3) {
			w := newTwin(t, client, limit, fmt.Sprintf("versions%d-%d", i, seed), uint64(seed))
			w.booking = kinds[limit.Algorithm] != kindLog // whose bookings the quick script of version 1 left to the general one
			for n := range 120 {
				w.silent = kinds[limit.Algorithm] == kindLog // version 1 does not report its debt
				w.remote.store.scripts = []*scripts{version1, current}[w.rng.IntN(2)]
				w.step(n)
			}
		}
	}
}

// A version of the format that is to come begins with another byte.
func TestAStateOfALaterVersionIsLeftAlone(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		l := f.real(limit)
		require.True(t, l.Allow("k", 3))
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
