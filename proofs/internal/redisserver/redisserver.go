// Package redisserver starts a redis-server for a test, a benchmark or a command.
package redisserver

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// ErrNone says that no redis-server is installed.
var ErrNone = errors.New("redis-server is not installed: apt-get install redis-server")

// Run starts a redis-server in a folder, that saves nothing, and returns a client with default options and
// a function that ends both.
func Run(dir string) (client *redis.Client, stop func(), err error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, nil, ErrNone
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	addr := l.Addr().String()
	host, port, _ := net.SplitHostPort(addr) // a listener's address has both
	if err := l.Close(); err != nil {        // only its port was wanted
		return nil, nil, err
	}
	cmd := exec.Command(path, "--port", port, "--bind", host, "--save", "", "--appendonly", "no", "--dir", dir)
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	client = redis.NewClient(&redis.Options{Addr: addr})
	stop = func() {
		_ = client.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	for range 500 {
		if err = client.Ping(context.Background()).Err(); err == nil {
			return client, stop, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return nil, nil, err
}

// Start is Run for a test, with which both end. Without a redis-server the test is skipped; with CI=true it
// fails.
func Start(tb testing.TB) *redis.Client {
	client, stop, err := Run(tb.TempDir())
	if errors.Is(err, ErrNone) {
		require.NotEqual(tb, "true", os.Getenv("CI"), err.Error())
		tb.Skip(err)
	}
	require.NoError(tb, err)
	tb.Cleanup(stop)
	return client
}
