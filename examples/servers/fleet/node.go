package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/redislimit"
)

const nodes = 3

// limit is each client's limit for the whole fleet. share is a client's limit at one server while that server is alone.
var (
	limit = ratelimit.TokenBucket(ratelimit.PerSecond(60), 60).Named("client")
	share = failover.Share(limit, nodes)
)

// node is one of the servers.
type node struct {
	server   *httptest.Server
	client   *redis.Client
	lease    *lease.Limiter[string]
	failover *failover.Limiter[string]

	allowed, denied, failed atomic.Int64
}

// newNode starts a server. It combines its limiters as a service does: the
// shared limit, leased in batches, and a share of it while Redis cannot decide.
func newNode(name, redisAddr string) (n *node, err error) {
	n = &node{client: redis.NewClient(&redis.Options{Addr: redisAddr})}
	shared, err := redislimit.New(n.client, limit, &redislimit.Options{Timeout: 40 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	if n.lease, err = lease.New(shared, &lease.Options[string]{MaxBatch: maxBatch}); err != nil {
		return nil, err
	}
	local, err := ratelimit.New[string](share, nil)
	if err != nil {
		return nil, err
	}
	n.failover, err = failover.New(n.lease, local, &failover.Options{
		Timeout: 50 * time.Millisecond,
		Logger:  slog.Default().With("server", name),
	})
	if err != nil {
		return nil, err
	}
	return n, n.start(name)
}

// start serves behind the limit.
func (n *node) start(name string) error {
	byClient := ratelimit.Map(n.failover, func(r *http.Request) (string, error) { return r.Header.Get("X-Client"), nil })
	limited, err := httplimit.New(byClient, &httplimit.Options{
		DegradedHeader: "X-RateLimit-Degraded",
		OnDecision:     n.count,
	})
	if err != nil {
		return err
	}
	n.server = httptest.NewServer(limited.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "hello from %s\n", name)
	})))
	return nil
}

func (n *node) count(e httplimit.Event) {
	switch e.Outcome {
	case httplimit.OutcomeAllowed:
		n.allowed.Add(1)
	case httplimit.OutcomeDenied:
		n.denied.Add(1)
	default:
		n.failed.Add(1)
	}
}

// counts has the numbers of decisions since the start, by source and result.
type counts struct {
	Allowed  int64  `json:"allowed"`
	Denied   int64  `json:"denied"`
	Failed   int64  `json:"failed"`
	Shared   int64  `json:"shared"`
	Leased   int64  `json:"leased"`
	Degraded int64  `json:"degraded"`
	Breaker  string `json:"breaker"`
}

func (n *node) counts() counts {
	over, batches := n.failover.Stats(), n.lease.Stats()
	leased := int64(batches.Local)
	return counts{
		Allowed: n.allowed.Load(), Denied: n.denied.Load(), Failed: n.failed.Load(),
		Shared: max(0, int64(over.Primary)-leased), Leased: leased, Degraded: int64(over.Instead),
		Breaker: n.failover.Stats().State.String(),
	}
}

// close gives back the server's batches.
func (n *node) close() {
	n.server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := n.lease.Flush(ctx); err != nil {
		slog.Warn("the rest of the batches is lost", "error", err)
	}
	_ = n.client.Close()
}
