package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAFileThatStaysIsKnownToBeTheNewest checks that CheckedAt
// advances with each look at a file, even if nothing has changed.
func TestAFileThatStaysIsKnownToBeTheNewest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte("rules:\n- {name: a, limit: blocked}\n"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		// The file is polled, because in a bubble time stands still while a watcher waits for the operating system.
		src := &file{path: path, watch: func() (*fsnotify.Watcher, error) { return nil, errors.New("none") }}
		p, err := New(nil, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- Follow(ctx, p, src) }()
		for range 20 {
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			assert.LessOrEqual(t, time.Since(p.Stats().CheckedAt), filePoll)
		}
		assert.Equal(t, uint64(2), p.Stats().Generation, "nothing is put in force again")
		require.NoError(t, os.WriteFile(path, []byte("rules: often\n"), 0o600))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		s := p.Stats()
		require.Error(t, s.LastError)
		assert.Greater(t, time.Since(s.CheckedAt), 4*time.Minute, "a broken file is not the set in force")
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}
