package policyredis_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// onClock is a hook that makes the scripts read a test's clock instead of the server's: it appends the words for that, as
// redislimit's own tests do.
type onClock struct{ ratelimit.Clock }

// clockEpoch is the Unix time at which such a clock stands at 0.
const clockEpoch = 1_450_000_000

func (h onClock) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h onClock) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.sent([]redis.Cmder{cmd}, func(all []redis.Cmder) error { return next(ctx, all[0]) })
	}
}

func (h onClock) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h.sent(cmds, func(all []redis.Cmder) error { return next(ctx, all) })
	}
}

// sent sends copies of the scripts' calls with the clock's time, and passes their replies on.
func (h onClock) sent(cmds []redis.Cmder, send func([]redis.Cmder) error) error {
	const outlive = int64(time.Hour / time.Microsecond)
	now := h.Now().Microseconds()
	copies := make([]redis.Cmder, len(cmds))
	for i, cmd := range cmds {
		if copies[i] = cmd; strings.HasPrefix(cmd.Name(), "eval") {
			copies[i] = redis.NewCmd(context.Background(), append(slices.Clone(cmd.Args()), clockEpoch+now/1e6, now%1e6, outlive, (clockEpoch*1_000_000+now)&0xFFFFFF)...)
		}
	}
	err := send(copies)
	for i, cmd := range cmds {
		if c, sent := copies[i].(*redis.Cmd); sent && c != cmd {
			cmd.(interface{ SetVal(any) }).SetVal(c.Val())
			cmd.SetErr(c.Err())
		}
	}
	return err
}

func TestCallsThatOverlapUseTheWholeLimit(t *testing.T) {
	const text = `
rules:
- {name: tokens, key: tenant, limit: token-bucket 100000/m burst 100000}
- {name: all, limit: token-bucket 1000000/m burst 1000000}
`
	for name, tenant := range map[string]string{"one round trip": "", "the common rule is leased": "tenant"} {
		t.Run(name, func(t *testing.T) {
			clock := new(ratelimittest.Clock)
			client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr})
			t.Cleanup(func() { require.NoError(t, client.Close()) })
			engine := policyredis.New(client, &policyredis.Options{Timeout: time.Minute, Tenant: tenant, MaxBatch: 4000, Hooks: []redis.Hook{onClock{clock}}})
			p, err := policy.New(parsed(t, text), &policy.Options{Engine: engine})
			require.NoError(t, err)
			assert.InDelta(t, 100_000, model.Overlap[policy.Request](t, clock, p, policy.Attributes{"tenant": "acme"}), 5000)
		})
	}
}
