// Package redisserver starts a Redis server for a test, a benchmark or a command.
package redisserver

import (
	"context"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/internal/dev/proc"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
)

// Run starts a server without saved data, in a folder. It returns a client
// with default options, and a function that stops the client and the server.
func Run(dir string) (client *redis.Client, stop func(), err error) {
	path, err := proc.RedisServer()
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	addr := l.Addr().String()
	host, port, _ := net.SplitHostPort(addr) // the address of a listener has both parts
	if err := l.Close(); err != nil {        // only the port is needed
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

// Start starts a server for one test, and returns a client with default options.
// If no server is installed, it skips the test, or fails it with CI=true.
func Start(tb testing.TB) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(tb).Addr})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}
