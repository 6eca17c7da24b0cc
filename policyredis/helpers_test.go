package policyredis_test

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

func parsed(t *testing.T, text string) *policy.Set {
	t.Helper()
	set, err := policy.Parse([]byte(text))
	require.NoError(t, err)
	return set
}

// dial returns a client of a server that may be slow.
func dial(t *testing.T, addr string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() }) // which a test may have done
	return client
}

// local returns a client of a server that it starts.
func local(t *testing.T) *redis.Client {
	t.Helper()
	return dial(t, redistest.Start(t).Addr)
}

// nowhere returns a client of a server that does not exist.
func nowhere(t *testing.T) *redis.Client {
	t.Helper()
	return dial(t, "127.0.0.1:1")
}

// over returns policies on a client. Decisions have a minute, unless o differs.
func over(t *testing.T, client redis.UniversalClient, text string, o policyredis.Options, opts policy.Options) *policy.Policies {
	t.Helper()
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	opts.Engine = policyredis.New(client, &o)
	p, err := policy.New(parsed(t, text), &opts)
	require.NoError(t, err)
	return p
}

// shared returns policies on a server, as one more process has them.
func shared(t *testing.T, addr, text string) *policy.Policies {
	t.Helper()
	return over(t, dial(t, addr), text, policyredis.Options{}, policy.Options{})
}

// both returns policies in memory, and policies on Redis.
func both(t *testing.T, client *redis.Client, prefix, text string, opts policy.Options) [2]*policy.Policies {
	t.Helper()
	memory, err := policy.New(parsed(t, text), &opts)
	require.NoError(t, err)
	return [2]*policy.Policies{memory, over(t, client, text, policyredis.Options{Prefix: prefix}, opts)}
}

func take(t *testing.T, p ratelimit.Limiter[policy.Request], r policy.Request, cost int) ratelimit.Decision {
	t.Helper()
	d, err := p.Take(t.Context(), r, cost)
	require.NoError(t, err)
	return d
}

func reserve(t *testing.T, p ratelimit.Reserver[policy.Request], r policy.Request, cost int) *ratelimit.Reservation {
	t.Helper()
	res, err := p.Reserve(t.Context(), r, cost, 0)
	require.NoError(t, err)
	return res
}

// peek returns the standing of a key of a rule, for a cost of one.
func peek(t *testing.T, p *policy.Policies, rule string, key ...string) ratelimit.Decision {
	t.Helper()
	d, err := p.Peek(t.Context(), policy.Subject{Rule: rule, Key: key}, 1)
	require.NoError(t, err)
	return d
}

// trips is a hook that counts round trips and their commands.
type trips struct{ n, commands atomic.Int64 }

func (h *trips) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h.add(1); return next(ctx, cmd) }
}

func (h *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { h.add(len(cmds)); return next(ctx, cmds) }
}

func (h *trips) add(commands int) {
	h.n.Add(1)
	h.commands.Add(int64(commands))
}

// onClock is a hook that makes the scripts read a test's clock instead of the server's: it appends the words for that, as
// redislimit's own tests do.
type onClock struct{ ratelimit.Clock }

// clockEpoch is the Unix time when such a clock stands at 0.
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

// bubbleTime is the clock of a testing/synctest bubble.
type bubbleTime struct{ began time.Time }

func (b bubbleTime) Now() time.Duration { return time.Since(b.began) }

// fleet plays processes in virtual time on a real server: time passes only while all
// wait, and not while a call is under way. Each process's options are made by opts.
func fleet(t *testing.T, server *redistest.Server, text string, processes int, o policyredis.Options, opts func(process int) policy.Options, play func(t *testing.T, all []*policy.Policies)) {
	synctest.Test(t, func(t *testing.T) {
		o.Hooks = []redis.Hook{onClock{bubbleTime{time.Now()}}}
		clients, all := make([]*redis.Client, processes), make([]*policy.Policies, processes)
		for i := range all {
			clients[i] = redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
			all[i] = over(t, clients[i], text, o, opts(i))
		}
		time.Sleep(time.Second)
		play(t, all)
		for _, p := range all {
			_ = p.Flush(t.Context()) // with a server that is down, the units lapse
		}
		time.Sleep(time.Minute) // the goroutines of processes that hold nothing end
		for _, c := range clients {
			require.NoError(t, c.Close())
		}
		time.Sleep(time.Minute) // a pool that is closed tries no server again
	})
}
