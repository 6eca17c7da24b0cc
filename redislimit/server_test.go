package redislimit

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/internal/dev/redistest"
)

// server is a redis-server for one test, without saved data.
type server struct {
	*redistest.Server
	t    testing.TB
	addr string
}

// startServer starts a server, which ends with the test.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	s := redistest.Start(t, args...)
	return &server{s, t, s.Addr}
}

func (s *server) kill() { s.Kill() }

// client returns a client with default options, closed with the test.
func (s *server) client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	s.t.Cleanup(func() { c.Close() })
	return c
}

func contextWithCancel(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
