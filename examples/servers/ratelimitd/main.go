// Ratelimitd is a rate limit service for gateways. It decides on requests from Envoy, NGINX, Caddy,
// Traefik and HAProxy, by one file of rules. The folder gateways has a configuration for each.
//
//	go -C examples/servers run ./ratelimitd
//	go -C examples/servers run ./ratelimitd -rules rules.yaml -redis redis://localhost:6379
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
	"github.com/weir-go/ratelimit/policyredis"
	"github.com/weir-go/ratelimit/promlimit"
)

// config holds the flags.
type config struct {
	web, rpc, operators string // the service's addresses
	rules, redis        string
	processes           int
	drain               time.Duration
}

func main() {
	var c config
	flag.StringVar(&c.web, "http", "localhost:8080", "address for sub-requests, JSON, health and metrics")
	flag.StringVar(&c.rpc, "grpc", "localhost:8081", "address for Envoy")
	flag.StringVar(&c.operators, "admin", "localhost:8082", "address of the page for operators, which has no authentication")
	flag.StringVar(&c.rules, "rules", "", "file with the rules; if empty, a copy of the example's own in a folder for temporary files")
	flag.StringVar(&c.redis, "redis", "", "URL of a Redis that several processes share; if empty, this process decides alone")
	flag.IntVar(&c.processes, "processes", 1, "number of processes that share the Redis: while it is down, this one enforces its share of each limit")
	flag.DurationVar(&c.drain, "drain", 5*time.Second, "time from SIGTERM, when /readyz fails, until no more connections are accepted")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, func(web, rpc, operators net.Addr) {
		slog.Info("the service listens", "http", web.String(), "grpc", rpc.String(), "admin", operators.String(), "rules", c.rules)
	}); err != nil {
		log.Fatal(err)
	}
}

// ownRules are the example's rules.
//
//go:embed rules.yaml
var ownRules []byte

// timeout bounds a decision on Redis. Envoy gives up after 20 ms by default. A test sets a longer one.
var timeout = 10 * time.Millisecond

// limiter decides for all protocols. The gateway holds the request, so the
// service cannot delay it. Reservations are made for now or not at all.
type limiter = ratelimit.Reserver[policy.Request]

// rules has the policies in force: on Redis and in this process, or only in this process.
type rules struct {
	limiter limiter
	// the policies on Redis, if there are any; a set applied to these is also applied to the policies in this process
	shown  *policy.Policies
	states map[string]admin.Failover
}

// endless returns an engine that refuses limits on calls at the same time. The service decides
// before the gateway passes a request on, and no gateway reports the request's end. So a file with
// such a limit is an error at the start. If it is reloaded later, the earlier rules stay in force.
func endless(e policy.Engine) policy.Engine {
	return func(b policy.Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		if b.Limit.Algorithm == ratelimit.AlgorithmConcurrent {
			return nil, fmt.Errorf("%w: %v: a rate limit service sees no end of a request, at which its units could be given back", ratelimit.ErrInvalidLimit, b.Limit)
		}
		return e(b, before)
	}
}

// newRules returns a file's rules, with metrics.
func newRules(ctx context.Context, file policy.Source, client redis.UniversalClient, processes int, metrics *promlimit.Metrics) (*rules, error) {
	set, err := file.Load(ctx)
	if err != nil {
		return nil, err
	}
	memory := new(policy.MemoryOptions)
	if client != nil {
		memory.Processes = processes
	}
	opts := &policy.Options{OnDecision: metrics.OnPolicyDecision(), ReuseRules: true, Engine: endless(policy.Memory(memory))}
	local, err := policy.New(set, opts)
	if err != nil {
		return nil, err
	}
	if client == nil {
		return &rules{limiter: local, shown: local}, metrics.Register("", local)
	}
	opts.StandIn = local // if Redis refuses a set, the set comes into force nowhere
	opts.Engine = endless(policyredis.New(client, &policyredis.Options{Timeout: timeout, Slot: func(string) string { return "rules" }}))
	shared, err := policy.New(set, opts)
	if err != nil {
		return nil, err
	}
	both, err := failover.New[policy.Request](shared, local, &failover.Options{Timeout: timeout})
	if err != nil {
		return nil, err
	}
	return &rules{
		limiter: both, shown: shared, states: map[string]admin.Failover{"redis": both},
	}, errors.Join(metrics.Register("", shared), metrics.Register("redis", both))
}

// run serves until the context ends. It passes its addresses to listening.
func run(ctx context.Context, c config, listening func(web, rpc, operators net.Addr)) error {
	if c.rules == "" {
		dir, err := os.MkdirTemp("", "ratelimitd")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		c.rules = filepath.Join(dir, "rules.yaml")
		if err := os.WriteFile(c.rules, ownRules, 0o600); err != nil {
			return err
		}
		slog.Info("the rules are a copy of the example's", "rules", c.rules)
	}
	var client redis.UniversalClient
	if c.redis != "" {
		opts, err := redis.ParseURL(c.redis)
		if err != nil {
			return fmt.Errorf("-redis: %w", err)
		}
		client = redis.NewClient(opts)
		defer client.Close()
	}
	registry := prometheus.NewRegistry()
	metrics, err := promlimit.New(registry)
	if err != nil {
		return err
	}
	file := policy.File(c.rules)
	rules, err := newRules(ctx, file, client, c.processes, metrics)
	if err != nil {
		return err
	}
	s := &service{limiter: rules.limiter}
	web, err := s.handler(metrics)
	if err != nil {
		return err
	}
	web.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return serve(ctx, c, s, web, admin.New(rules.shown, &admin.Options{Write: true, Failovers: rules.states}), func(ctx context.Context) {
		go func() { _ = policy.Follow(ctx, rules.shown, file) }() // returns when the context ends
	}, listening)
}

// service answers in all protocols.
type service struct {
	rls.UnimplementedRateLimitServiceServer
	limiter  limiter
	draining atomic.Bool
}

// serve listens until the context ends, and then drains. First /readyz fails, so that load
// balancers send no more. Then no new connection is accepted. Then requests under way are answered.
func serve(ctx context.Context, c config, s *service, web, operators http.Handler, follow func(context.Context), listening func(web, rpc, operators net.Addr)) error {
	listeners := make([]net.Listener, 3)
	for i, addr := range []string{c.web, c.rpc, c.operators} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		defer l.Close()
		listeners[i] = l
	}
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	follow(following)

	rpc, ready := grpc.NewServer(), health.NewServer()
	rls.RegisterRateLimitServiceServer(rpc, s)
	healthpb.RegisterHealthServer(rpc, ready)
	servers := []*http.Server{
		{Handler: web, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute},
		{Handler: operators, ReadHeaderTimeout: 5 * time.Second},
	}
	failed := make(chan error, 3)
	go func() { failed <- servers[0].Serve(listeners[0]) }()
	go func() { failed <- rpc.Serve(listeners[1]) }()
	go func() { failed <- servers[1].Serve(listeners[2]) }()
	listening(listeners[0].Addr(), listeners[1].Addr(), listeners[2].Addr())

	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		s.draining.Store(true)
		ready.Shutdown()
		time.Sleep(c.drain)
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(c.drain, time.Second))
	defer cancel()
	forced := context.AfterFunc(end, rpc.Stop)
	defer forced()
	for _, server := range servers {
		err = errors.Join(err, server.Shutdown(end))
	}
	rpc.GracefulStop()
	return err
}
