package grpclimit_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

const nginxConf = `
daemon off;
master_process off;
pid %[1]s/pid;
error_log %[1]s/error.log;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server {
		listen %[2]s http2;
		client_max_body_size 0;
		location / {
			grpc_pass grpc://%[3]s;
			grpc_set_header X-Forwarded-For $http_from;
		}
	}
}
`

// nginx runs the program of that name as a proxy. Clients give their address in "from", as with proxy.
func nginx(t *testing.T, backend string) (addr string) {
	t.Helper()
	testsize.Extra(t)
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed")
	}
	addr = freeAddress(t)
	dir := t.TempDir()
	conf, log := filepath.Join(dir, "conf"), filepath.Join(dir, "error.log")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, addr, backend), 0o600))
	cmd := exec.Command(program, "-p", dir, "-c", conf, "-e", log)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil || t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("nginx: %v\n%s", err, text)
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

// freeAddress returns an address on which no process listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, lis.Close())
	return lis.Addr().String()
}
