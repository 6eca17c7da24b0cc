package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// start runs a gateway on a copy of the rules, so that the test may change it.
func start(t *testing.T) (addr string, edit func(old, text string)) {
	t.Helper()
	text, err := os.ReadFile("rules.yaml")
	require.NoError(t, err)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, text, 0o600))
	backend := httptest.NewServer(http.HandlerFunc(hello))
	t.Cleanup(backend.Close)
	h, follow, err := gateway(rules, backend.URL)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- follow(ctx) }()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.Close()
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	return server.URL, func(old, replacement string) {
		require.Contains(t, string(text), old)
		text = []byte(strings.Replace(string(text), old, replacement, 1))
		require.NoError(t, os.WriteFile(rules+".new", text, 0o600))
		require.NoError(t, os.Rename(rules+".new", rules))
	}
}

func get(t *testing.T, url, user, plan string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	if user != "" {
		req.Header.Set("X-User", user)
	}
	req.Header.Set("X-Plan", plan)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// TestTheGatewayFollowsItsRules repeats the session in README.md.
func TestTheGatewayFollowsItsRules(t *testing.T) {
	addr, edit := start(t)
	status, body := get(t, addr+"/a", "ann", "")
	assert.Equal(t, 200, status)
	assert.Equal(t, "hello from /a\n", body)
	get(t, addr+"/a", "ann", "")
	status, body = get(t, addr+"/a", "ann", "")
	assert.Equal(t, 429, status)
	assert.Contains(t, body, `"violated-policies":["user"]`)
	status, _ = get(t, addr+"/a", "", "")
	assert.Equal(t, 400, status, "no user, no service")

	status, _ = get(t, addr+"/a", "ann", "pro")
	assert.Equal(t, 200, status, "an upgrade is in force at once")

	becomes := func(want int, user, path string) {
		t.Helper()
		require.Eventually(t, func() bool {
			got, _ := get(t, addr+path, user, "")
			return got == want
		}, 20*time.Second, 10*time.Millisecond)
	}
	edit("token-bucket 1/m burst 2", "blocked")
	becomes(403, "bob", "/a")
	edit("version:", "kill_switch: true\nversion:")
	becomes(200, "bob", "/a")
}

func TestBadRulesAreRefusedAtTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte("rules:\n- {name: a}\n"), 0o600))
	_, _, err := gateway(path, "http://localhost")
	require.ErrorContains(t, err, "line 2")
	require.ErrorContains(t, run(t.Context(), "localhost:0", "missing.yaml", ""), "missing.yaml")
}

// TestItRunsWithoutArguments from any folder, with rules that a reader may change.
func TestItRunsWithoutArguments(t *testing.T) {
	t.Chdir(t.TempDir())
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir) // for Windows
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	var addr string
	start := func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr = l.Addr().String()
		require.NoError(t, l.Close())
		go func() { done <- run(ctx, addr, "", "") }()
	}
	start()
	require.Eventually(t, func() bool {
		select {
		case err := <-done: // another process has taken the port first
			assert.ErrorContains(t, err, addr)
			start()
		default:
		}
		resp, err := http.Get("http://" + addr)
		if err != nil {
			return false
		}
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode == http.StatusBadRequest // the request names no user
	}, 20*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the copy is removed")
}
