package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// With RESTART_EXAMPLE set, the test's program runs the example.
func TestMain(m *testing.M) {
	if os.Getenv("RESTART_EXAMPLE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// start starts the example as a process, and reads its lines up to the first one that contains the text until.
func start(t *testing.T, path, until string) (*exec.Cmd, *bufio.Scanner, []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-state", path)
	cmd.Env = append(os.Environ(), "RESTART_EXAMPLE=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	var seen []string
	for lines.Scan() {
		seen = append(seen, lines.Text())
		if strings.Contains(lines.Text(), until) {
			return cmd, lines, seen
		}
	}
	require.Fail(t, "the example ended too early", "%q", seen)
	return nil, nil, nil
}

func TestNothingIsMintedByARestart(t *testing.T) {
	if testing.Short() && testing.CoverMode() != "" {
		t.Skip("as a process")
	}
	path := filepath.Join(t.TempDir(), "state")
	allowed := map[string]int{}
	count := func(lines ...string) {
		for _, line := range lines {
			for _, client := range []string{"ann", "bob"} {
				if strings.HasPrefix(line, client+" allowed: true") {
					allowed[client]++
				}
			}
		}
	}
	left := 20
	for range 4 {
		if left -= 3; left < 0 {
			break // the machine delayed the signals, and the example has continued meanwhile
		}
		cmd, lines, seen := start(t, path, fmt.Sprintf("bob allowed: true left: %d", left))
		count(seen...)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		last := ""
		for lines.Scan() {
			last = lines.Text()
			count(last)
			if strings.HasPrefix(last, "bob allowed: true") {
				left-- // a request was under way
			}
		}
		require.Equal(t, "saved", last)
		require.NoError(t, cmd.Wait())
	}
	cmd, lines, seen := start(t, path, "saved") // it ends by itself when no budget is left
	count(seen...)
	require.False(t, lines.Scan())
	require.NoError(t, cmd.Wait())
	require.Equal(t, map[string]int{"ann": 20, "bob": 20}, allowed)

	// A truncated file is restored as far as possible, with an error.
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, whole[:len(whole)-3], 0o600))
	cmd = exec.CommandContext(t.Context(), os.Args[0], "-state", path)
	cmd.Env = append(os.Environ(), "RESTART_EXAMPLE=1")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	text, err := io.ReadAll(stderr)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	require.Contains(t, string(text), "not all could be restored")
}
