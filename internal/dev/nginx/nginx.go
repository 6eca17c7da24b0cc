// Package nginx starts nginx for tests and examples. It writes only into a folder of the test.
package nginx

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Command returns a command that runs nginx with a configuration.
func Command(t testing.TB, config string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	own := "http {\n    access_log off;\n"
	for _, path := range []string{"client_body_temp_path", "proxy_temp_path", "fastcgi_temp_path", "uwsgi_temp_path", "scgi_temp_path"} {
		own += fmt.Sprintf("    %s %s;\n", path, filepath.Join(dir, path))
	}
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(config, "http {\n", own, 1)), 0o600))
	return exec.Command("nginx", "-p", dir, "-c", file, "-e", "stderr", "-g", "daemon off; master_process off; pid "+filepath.Join(dir, "pid")+";")
}

// Start runs nginx until the test ends, and returns its address. The address replaces
// the first %s in the configuration. Without nginx, the test is skipped, or fails in CI.
func Start(t testing.TB, config string) (addr string) {
	t.Helper()
	testsize.Program(t, "nginx")
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = lis.Addr().String()
	require.NoError(t, lis.Close())
	cmd, log := Command(t, strings.Replace(config, "%s", addr, 1)), new(strings.Builder)
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("nginx: %v\n%s", err, log)
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
	return addr
}
