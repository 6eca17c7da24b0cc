package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/redislimit"
)

// setup configures one process of the fleet, as JSON in its environment.
type setup struct {
	Engine     string // a key in engines
	Addr       string // Redis's address
	Name       string // the budgets' name in Redis
	Rate       ratelimit.Rate
	Burst      int
	Nodes      int // how many processes there are
	Node       int // this process's index
	MaxBatch   int
	Keys       int     // how many keys there are
	Skew       float64 // the exponent of Zipf's law, above 1
	Demand     int     // this process's decisions a second
	Goroutines int
	Lasts      time.Duration
	Timeout    time.Duration // failover's Timeout
	Deadline   time.Duration // each caller's deadline; 0 means none
	MaxCalls   int           // failover's MaxCalls; 0 means the default
	Seed       uint64
	Alone      bool // whether only the first process decides

	// Addrs and Demands have each process's Addr and Demand, if these differ.
	Addrs   []string
	Demands []int
}

// engines has the ways to hold a fleet to a limit.
var engines = map[string]func(s setup, client *redis.Client) (engine, error){
	"central":             central,
	"leased":              leased,
	"static":              static,
	"failover":            failingOver,
	"failover over lease": overLease,
	"lease over failover": underLease,
	"regions":             leasedAcross,
	"far":                 far,
}

// engine is a limiter under test, with its statistics.
type engine struct {
	ratelimit.Reserver[string]
	flush func(context.Context) error
	state func() failover.State
	lease func() lease.Stats
}

func (s setup) limit() ratelimit.Limit { return ratelimit.TokenBucket(s.Rate, s.Burst) }

// share returns one process's limit while it is alone.
func (s setup) share() ratelimit.Limit {
	r := s.Rate
	r.Per *= time.Duration(s.Nodes)
	return ratelimit.TokenBucket(r, max(1, s.Burst/s.Nodes))
}

// newEngine returns the whole limiter under test.
func newEngine(s setup, client *redis.Client) (engine, error) {
	build, ok := engines[s.Engine]
	if !ok {
		return engine{}, fmt.Errorf("there is no engine %q", s.Engine)
	}
	e, err := build(s, client)
	if e.flush == nil {
		e.flush = func(context.Context) error { return nil }
	}
	if e.state == nil {
		e.state = func() failover.State { return failover.StateClosed }
	}
	if e.lease == nil {
		e.lease = func() (none lease.Stats) { return none }
	}
	return e, err
}

func central(s setup, client *redis.Client) (engine, error) {
	l, err := redislimit.New(client, s.limit(), &redislimit.Options{Name: s.Name, Timeout: s.Timeout * 4 / 5})
	return engine{Reserver: l}, err
}

func static(s setup, _ *redis.Client) (engine, error) {
	l, err := ratelimit.New[string](s.share(), nil)
	return engine{Reserver: l}, err
}

func leased(s setup, client *redis.Client) (engine, error) {
	c, err := central(s, client)
	if err != nil {
		return c, err
	}
	return leaseOf(s, c)
}

func leaseOf(s setup, remote engine) (engine, error) {
	l, err := lease.New(remote.Reserver, &lease.Options[string]{MaxBatch: s.MaxBatch})
	if err != nil {
		return engine{}, err
	}
	return engine{Reserver: l, flush: l.Flush, lease: l.Stats, state: remote.state}, nil
}

func failingOver(s setup, client *redis.Client) (engine, error) {
	c, err := central(s, client)
	if err != nil {
		return c, err
	}
	return failoverOf(s, c)
}

func failoverOf(s setup, primary engine) (engine, error) {
	local, err := static(s, nil)
	if err != nil {
		return engine{}, err
	}
	l, err := failover.New(primary.Reserver, local.Reserver, &failover.Options{
		Timeout:  s.Timeout,
		MaxCalls: s.MaxCalls,
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return engine{}, err
	}
	return engine{Reserver: l, state: func() failover.State { return l.Stats().State }, flush: primary.flush, lease: primary.lease}, nil
}

func overLease(s setup, client *redis.Client) (engine, error) {
	c, err := leased(s, client)
	if err != nil {
		return c, err
	}
	return failoverOf(s, c)
}

func underLease(s setup, client *redis.Client) (engine, error) {
	c, err := failingOver(s, client)
	if err != nil {
		return c, err
	}
	return leaseOf(s, c)
}
