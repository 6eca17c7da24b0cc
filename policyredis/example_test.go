package policyredis_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

func exampleSet() *policy.Set {
	set, err := policy.Parse([]byte("rules:\n- {name: api, key: user, limit: fixed-window 2/h}\n"))
	if err != nil {
		panic(err)
	}
	return set
}

// While Redis is down, each of eight processes enforces its share of the
// same rules: one of two units an hour, because a share is rounded up.
func Example_redisIsDown() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}) // no server listens there
	defer client.Close()
	set := exampleSet()
	inMemory := policy.Memory(&policy.MemoryOptions{Processes: 8}) // of which each enforces an eighth
	local, err := policy.New(set, &policy.Options{Engine: inMemory})
	if err != nil {
		panic(err)
	}
	shared, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, nil), StandIn: local}) // Follow these: local gets each set with them
	if err != nil {
		panic(err)
	}
	limiter, err := failover.New[policy.Request](shared, local, &failover.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		panic(err)
	}
	for range 3 {
		d, err := limiter.Take(context.Background(), policy.Attributes{"user": "ann"}, 1)
		fmt.Println(d.Allowed, d.Degraded, err)
	}
	// Output:
	// true true <nil>
	// false true <nil>
	// false true <nil>
}

// caller is a comparable request, as a lease needs it: one value for each budget.
type caller struct{ user, plan string }

func (c caller) Attribute(name string) (string, bool) {
	switch name {
	case "user":
		return c.user, true
	case "plan":
		return c.plan, true
	}
	return "", false
}

// Leases in front of rules on Redis: most decisions cost no round trip.
func Example_leases() {
	policies, err := policy.New(exampleSet(), nil) // in a fleet with Engine: policyredis.New(client, nil)
	if err != nil {
		panic(err)
	}
	remote := ratelimit.Map(policies, func(c caller) (policy.Request, error) { return c, nil })
	limiter, err := lease.New(remote, &lease.Options[caller]{MaxBatch: 2})
	if err != nil {
		panic(err)
	}
	defer limiter.Flush(context.Background())
	for range 3 {
		fmt.Println(limiter.Allow(caller{user: "ann"}, 1))
	}
	// Output:
	// true
	// true
	// false
}
