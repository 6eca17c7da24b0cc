package policyredis_test

import (
	"cmp"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

var ann = policy.Attributes{"user": "ann"}

func parsed(text string) *policy.Set { return ratelimit.Must(policy.Parse([]byte(text))) }

// dial returns a client with time for a slow server.
func dial(t *testing.T, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute, MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	return client
}

// local starts a server and returns its client.
func local(t *testing.T) *redis.Client { return dial(t, redistest.Start(t).Addr) }

// nowhere returns a client without a server.
func nowhere(t *testing.T) *redis.Client { return dial(t, "127.0.0.1:1") }

// over returns policies on a client. Decisions have a minute, unless o differs.
func over(client redis.UniversalClient, text string, o policyredis.Options, opts policy.Options) *policy.Policies {
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	opts.Engine = policyredis.New(client, &o)
	return ratelimit.Must(policy.New(parsed(text), &opts))
}

// shared returns policies on a server, like one more process.
func shared(t *testing.T, addr, text string) *policy.Policies {
	return over(dial(t, addr), text, policyredis.Options{}, policy.Options{})
}

func take(t *testing.T, p ratelimit.Limiter[policy.Request], r policy.Request, cost int) ratelimit.Decision {
	t.Helper()
	d, err := p.Take(t.Context(), r, cost)
	require.NoError(t, err)
	return d
}

// settle reserves the estimate, and settles at the cost.
func settle(t *testing.T, p ratelimit.Reserver[policy.Request], r policy.Request, estimate, cost int) {
	t.Helper()
	res, err := p.Reserve(t.Context(), r, estimate, 0)
	require.NoError(t, err)
	require.True(t, res.Allowed)
	require.NoError(t, res.Settle(cost))
}

// peek returns a subject's standing for a cost of one.
func peek(t *testing.T, p *policy.Policies, rule, plan string, key ...string) ratelimit.Decision {
	t.Helper()
	d, err := p.Peek(t.Context(), policy.Subject{Rule: rule, Key: key, Plan: plan}, 1)
	require.NoError(t, err)
	return d
}

// sent is a hook. It counts the commands sent to the server, and how many of them scan.
type sent struct{ all, scans atomic.Int64 }

func (s *sent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { s.add(cmd); return next(ctx, cmd) }
}

func (s *sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { s.add(cmds...); return next(ctx, cmds) }
}

func (s *sent) add(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if s.all.Add(1); cmd.Name() == "scan" {
			s.scans.Add(1)
		}
	}
}
