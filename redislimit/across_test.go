package redislimit

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// scriptCalls counts the script calls, and how many of them declare no key.
type scriptCalls struct {
	redis.Hook
	calls, undeclared int
	refuse            error // the error of calls without declared keys
}

func (h *scriptCalls) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *scriptCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *scriptCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var pass []redis.Cmder
		for _, cmd := range cmds {
			h.calls++
			declared := cmd.Args()[2].(int)
			if declared == 0 {
				h.undeclared++
			}
			if declared == 0 && h.refuse != nil {
				cmd.SetErr(h.refuse)
			} else {
				pass = append(pass, cmd)
			}
		}
		if len(pass) == 0 {
			return h.refuse
		}
		return next(ctx, pass)
	}
}

// oneNode returns a node's lane, and n keys of the node in several slots.
func oneNode(t *testing.T, l *Limiter, n int) (*lane, []string) {
	t.Helper()
	var keys []string
	var all *lane
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("t", i, "/k")
		var mine *lane
		require.Eventually(t, func() bool {
			_, err := l.Peek(t.Context(), key, 0)
			mine = l.store.nodes.lane(l.space.key(key))
			return err == nil && mine != nil
		}, 20*time.Second, 10*time.Millisecond)
		if all == nil {
			all = mine
		}
		if mine == all {
			keys = append(keys, key)
		}
	}
	return all, keys
}

func tenant(key string) string {
	name, _, _ := strings.Cut(key, "/")
	return name
}

// inOneBatch sends one decision on each key in a round trip, and returns the charged costs.
func inOneBatch(t *testing.T, l *Limiter, on *lane, cost int64, keys ...string) (allowed int) {
	t.Helper()
	var all []*queued
	b := &batch{staying: len(keys)}
	for _, key := range keys {
		a := newQueued(l, key, cost)
		a.call.batch = b
		all, b.calls = append(all, a), append(b.calls, &a.call)
	}
	on.pipeline(t.Context(), b)
	for i, a := range all {
		ok, err := a.decided(t.Context())
		require.NoError(t, err, keys[i])
		if ok {
			allowed++
		}
	}
	return allowed
}

func TestKeysOfSeveralSlots(t *testing.T) {
	c := manySlots{redistest.StartCluster(t, 3, false)}
	t.Run("share a call", c.testShareACall)
	t.Run("a key that fails disturbs no other one", c.testKeysThatFail)
	t.Run("a server that begins to refuse such calls gets declared keys", c.testRefused)
	t.Run("keys of a moving slot are charged once where they are", c.testMovingSlot)
}

// manySlots is a cluster. Each test has its own client.
type manySlots struct{ *redistest.Cluster }

func (c manySlots) testShareACall(t *testing.T) {
	client := clusterClient(t, c.Cluster)
	var seen scriptCalls
	client.AddHook(&seen)
	verdicts(t)
	for _, limit := range fiveLimits() {
		limit.Rate.Per = 10 * time.Hour // nothing is regained during the test
		for _, declare := range []bool{false, true} {
			l, err := New(client, limit, &Options{Name: fmt.Sprint(limit.Name, declare), Timeout: 20 * time.Second, DeclareKeys: declare})
			require.NoError(t, err)
			on, keys := oneNode(t, l, 6)
			assert.Equal(t, 6, inOneBatch(t, l, on, 4, keys...), "the first batch checks the server")
			assert.Equal(t, 6, inOneBatch(t, l, on, 1, keys...), "and these teach it the script")
			seen.calls, seen.undeclared = 0, 0
			assert.Equal(t, 6, inOneBatch(t, l, on, 4, keys...))
			assert.Zero(t, inOneBatch(t, l, on, 4, keys...))
			if declare {
				assert.Equal(t, 12, seen.calls, limit.Name)
				assert.Zero(t, seen.undeclared)
			} else {
				assert.Equal(t, 2, seen.calls, limit.Name)
				assert.Equal(t, 2, seen.undeclared)
			}
			for _, key := range keys {
				d, err := l.Peek(t.Context(), key, 0)
				require.NoError(t, err)
				assert.Equal(t, 1, d.Remaining, limit.Name)
			}
		}
	}
}

// An unusual key affects no other key of its call. The general case decides on it, or a call of its own.
func (c manySlots) testKeysThatFail(t *testing.T) {
	client := clusterClient(t, c.Cluster)
	for _, limit := range fiveLimits() {
		limit.Rate.Per = 10 * time.Hour
		l, err := New(client, limit, &Options{Name: "fails-" + limit.Name, Timeout: 20 * time.Second})
		require.NoError(t, err)
		on, keys := oneNode(t, l, 5)
		inOneBatch(t, l, on, 1, keys...)
		require.Equal(t, shareNode, sharing(on.share.Load()))
		require.NoError(t, client.Del(t.Context(), l.space.key(keys[0])).Err())
		require.NoError(t, client.LPush(t.Context(), l.space.key(keys[0]), "7").Err())
		require.NoError(t, client.Set(t.Context(), l.space.key(keys[1]), "7", 0).Err())
		require.NoError(t, l.Adjust(t.Context(), keys[2], 25))
		var all []*queued
		b := &batch{staying: len(keys)}
		for _, key := range keys {
			a := newQueued(l, key, 4)
			a.call.batch = b
			all, b.calls = append(all, a), append(b.calls, &a.call)
		}
		on.pipeline(t.Context(), b)
		for i, a := range all {
			allowed, err := a.decided(t.Context())
			if i < 2 {
				assert.ErrorIs(t, err, errForeignState, limit.Name)
				assert.ErrorContains(t, err, limit.Name)
				continue
			}
			require.NoError(t, err)
			assert.Equal(t, i > 2, allowed, "%s, key %d", limit.Name, i)
		}
	}
}

// While a slot moves, each of its two servers has some of its keys. The old server refuses the moved keys,
// and they are charged on the new one. The others are charged on the old one. No budget starts fresh.
func (c manySlots) testMovingSlot(t *testing.T) {
	client := clusterClient(t, c.Cluster)
	limits := []ratelimit.Limit{
		ratelimit.FixedWindow(ratelimit.PerDay(1 << 30)).Named("fixed"),
		ratelimit.SlidingLog(ratelimit.PerDay(2000)).Named("log"),
	}
	limits = limits[:testsize.Of(1, 2)]
	for i, limit := range limits {
		l, err := New(client, limit, &Options{Timeout: 20 * time.Second, Slot: tenant})
		require.NoError(t, err)
		on, others := oneNode(t, l, 4)
		moving, still := tenant(others[0]), others[1:]
		var keys []string
		for i := range 6 { // the moving slot's keys stand among other slots' keys
			keys = append(keys, moving+"/"+strconv.Itoa(i), still[i%len(still)])
		}
		charged := map[string]int{}
		charge := func() {
			for i := range keys { // each key comes first in a call once
				turned := append(append([]string(nil), keys[i:]...), keys[:i]...)
				require.Equal(t, len(keys), inOneBatch(t, l, on, 3, turned...))
				for _, key := range turned {
					charged[key] += 3
				}
			}
		}
		charge()
		require.Equal(t, shareNode, sharing(on.share.Load()))
		slot, err := c.Slot(l.space.key(moving + "/0"))
		require.NoError(t, err)
		from := slot * 3 / redistest.Slots
		rounds := 0
		require.NoError(t, c.Move(slot, from, (from+1)%3, func() {
			if rounds++; rounds%2 == 0 {
				charge()
			}
		}))
		charge()
		for _, key := range keys {
			d, err := l.Peek(t.Context(), key, 0)
			require.NoError(t, err)
			assert.Equal(t, charged[key], limit.Capacity()-d.Remaining, "%s, key %s", limit.Name, key)
		}
		if i < len(limits)-1 {
			require.NoError(t, c.Move(slot, (from+1)%3, from, nil))
		}
	}
}

// The client treats two servers as a cluster, but they refuse no key. An
// undeclared key could be on the other server, so all keys are declared.
func TestAServerThatRefusesNoKeyGetsDeclaredKeys(t *testing.T) {
	a, b := startServer(t), startServer(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{
			{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: a.addr}}},
			{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: b.addr}}},
		}, nil
	}})
	defer client.Close()
	var seen scriptCalls
	client.AddHook(&seen)
	l, err := New(client, perMinute(10), &Options{Name: "free", Timeout: 20 * time.Second})
	require.NoError(t, err)
	on, keys := oneNode(t, l, 5)
	for range 3 {
		assert.Equal(t, 5, inOneBatch(t, l, on, 1, keys...))
	}
	assert.Equal(t, shareSlot, sharing(on.share.Load()))
	assert.Equal(t, 2, seen.undeclared, "the server is checked once, in two calls because it did not know the script")
	on.checkAt.Store(0)
	assert.Equal(t, 5, inOneBatch(t, l, on, 1, keys...))
	assert.Equal(t, 3, seen.undeclared, "and later once more")
}

func (c manySlots) testRefused(t *testing.T) {
	client := clusterClient(t, c.Cluster)
	var seen scriptCalls
	client.AddHook(&seen)
	l, err := New(client, perMinute(10), &Options{Name: "refused", Timeout: 20 * time.Second})
	require.NoError(t, err)
	on, keys := oneNode(t, l, 5)
	assert.Equal(t, 5, inOneBatch(t, l, on, 1, keys...))
	require.Equal(t, shareNode, sharing(on.share.Load()))

	seen.refuse = answered("READONLY You can't write against a read only replica.")
	assert.Equal(t, 5, inOneBatch(t, l, on, 1, keys...), "by themselves they are redirected")
	assert.Equal(t, shareNode, sharing(on.share.Load()))

	seen.refuse = answered("ERR Unexpected flag in script shebang: allow-cross-slot-keys")
	a, b := newQueued(l, keys[0], 1), newQueued(l, keys[1], 1)
	both := &batch{staying: 2, calls: []*call{&a.call, &b.call}}
	a.call.batch, b.call.batch = both, both
	on.pipeline(t.Context(), both)
	_, err = a.decided(t.Context())
	assert.ErrorContains(t, err, "Unexpected flag")
	assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
	assert.Equal(t, shareSlot, sharing(on.share.Load()))
	seen.undeclared = 0
	assert.Equal(t, 5, inOneBatch(t, l, on, 1, keys...), "from then on keys are declared")
	assert.Zero(t, seen.undeclared)
	d, err := l.Peek(t.Context(), keys[0], 0)
	require.NoError(t, err)
	assert.Equal(t, 7, d.Remaining)
}
