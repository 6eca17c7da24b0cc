package redislimit

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// The test checks the statements of redislimit/README.md about a kill -9 and a restart.
func TestARestartOfRedisKeepsWrittenSpendingAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		save bool // a snapshot is saved between the two charges
		left int  // the rest of 10 units, after charges of 3 and 4
	}{
		{"nothing is kept", nil, false, 10},
		{"a snapshot keeps what was before it", nil, true, 7},
		{"appendfsync always keeps all", []string{"--appendonly", "yes", "--appendfsync", "always"}, false, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"--dir", t.TempDir()}, c.args...)
			before := startServer(t, args...)
			l := defaultsFor(t, before)
			require.NoError(t, l.SetLimit(ratelimit.FixedWindow(ratelimit.PerDay(10))))
			require.True(t, l.Allow("k", 3))
			if c.save {
				require.NoError(t, before.client().Save(t.Context()).Err())
			}
			require.True(t, l.Allow("k", 4))
			before.kill()
			after := defaultsFor(t, startServer(t, args...))
			require.NoError(t, after.SetLimit(ratelimit.FixedWindow(ratelimit.PerDay(10))))
			d, err := after.Peek(t.Context(), "k", 0)
			require.NoError(t, err)
			assert.Equal(t, c.left, d.Remaining)
		})
	}
}
