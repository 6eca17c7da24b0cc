package redislimit

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// commands lists what an ACL must allow in addition to "eval". Reset needs "del", too.
var commands = []string{"evalsha", "time", "get", "getrange", "strlen", "set", "append"}

// slotCommands lists what a semaphore needs in addition to "eval".
var slotCommands = []string{"evalsha", "time", "zadd", "zrem", "zcard", "zscore", "zmscore", "zrange", "zrangebyscore", "zrevrangebyscore", "pexpire"}

// restricted returns a client of a user who may run all the commands except one.
func (f *fixture) restricted(commands []string, missing string) *redis.Client {
	rules := []any{"acl", "setuser", "few", "reset", "on", ">secret", "~*", "+hello", "+client", "+ping", "+del", "+eval"}
	for _, c := range commands {
		if c != missing {
			rules = append(rules, "+"+c)
		}
	}
	require.NoError(f.t, f.client.Do(f.t.Context(), rules...).Err())
	c := redis.NewClient(&redis.Options{Addr: f.client.Options().Addr, Username: "few", Password: "secret"})
	f.t.Cleanup(func() { c.Close() })
	return c
}

// hourlyLimits returns five limits. Nothing is regained under them while a test runs.
func hourlyLimits() []ratelimit.Limit {
	limits := fiveLimits()
	for i := range limits {
		limits[i].Rate.Per = time.Hour
	}
	return limits
}

// several returns a stack whose decisions need commands of all kinds. One of its limits is a log with 150 spendings.
func (f *fixture) several(client *redis.Client) *ratelimit.Layered[string] {
	var layers []ratelimit.Layer[string]
	for _, limit := range append(hourlyLimits(), ratelimit.TokenBucket(ratelimit.PerHour(20), 20).Named("token2"),
		ratelimit.SlidingLog(ratelimit.PerHour(1000)).Named("longlog"), ratelimit.FixedWindow(ratelimit.PerHour(20)).Named("fixed2")) {
		l, err := New(client, limit, &Options{Timeout: 10 * time.Second})
		require.NoError(f.t, err)
		layers = append(layers, ratelimit.By(l, identity))
	}
	stack, err := ratelimit.All(layers...)
	require.NoError(f.t, err)
	return stack
}

func TestACommandThatAnACLForbidsChargesNothing(t *testing.T) {
	f := newFixture(t)
	long, err := New(f.client, ratelimit.SlidingLog(ratelimit.PerHour(1000)), &Options{Name: "longlog", Timeout: 10 * time.Second})
	require.NoError(t, err)
	for range 150 {
		require.True(t, long.Allow("k", 1))
	}
	require.True(t, f.several(f.restricted(commands, "")).Allow("k", 1), "these commands are enough")
	for _, missing := range commands {
		client := f.restricted(commands, missing)
		for _, call := range []func() error{
			func() error { _, err := f.several(client).Take(t.Context(), "k", 1); return err },
			func() error { _, err := f.several(client).Reserve(t.Context(), "k", 1, time.Hour); return err },
		} {
			before := f.dump()
			err := call()
			if err == nil {
				assert.Contains(t, []string{"get", "getrange", "strlen", "append"}, missing, "GET reads the whole state, and GETRANGE its first part")
				continue
			}
			assert.True(t, maps.Equal(before, f.dump()), missing)
			assert.ErrorIs(t, err, ratelimit.ErrUnavailable, missing)
			assert.ErrorContains(t, err, "ACL lacks", missing)
			assert.NotErrorIs(t, err, ratelimit.ErrUnanswered, missing)
		}
		for _, limit := range append(hourlyLimits(), ratelimit.SlidingLog(ratelimit.PerHour(1000)).Named("longlog")) {
			f.inOneCall(client, limit, missing+" is missing: "+limit.Name)
		}
	}
	client := f.restricted(commands, "")
	l, err := New(client, hourlyLimits()[0], &Options{Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.NoError(t, l.Reset(t.Context(), "k"))
	require.NoError(t, l.Adjust(t.Context(), "k", 3))
	assert.Equal(t, 7, f.left(l, "k"))
}

func TestACommandThatAnACLForbidsLeavesNoSlot(t *testing.T) {
	f := newFixture(t)
	semaphore := func(missing string, limit int) *Semaphore {
		s, err := NewSemaphore(f.restricted(slotCommands, missing), limit, &SemaphoreOptions{Name: "slots", Timeout: 10 * time.Second})
		require.NoError(t, err)
		return s
	}
	call := func(missing string, limit int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := semaphore(missing, limit).Acquire(ctx, "k", 2)
		return err
	}
	for _, waits := range []bool{false, true} { // once without a line, and once in a line
		for _, missing := range slotCommands {
			require.NoError(t, f.client.FlushAll(t.Context()).Err())
			limit := 5
			if waits {
				_, err := semaphore("", limit).TryAcquire(t.Context(), "k", 4)
				require.NoError(t, err)
			}
			before := f.client.DBSize(t.Context()).Val()
			err := call(missing, limit)
			if err == nil || errors.Is(err, context.DeadlineExceeded) && before == f.client.DBSize(t.Context()).Val() {
				continue // the command was not needed, or the call gave its place back
			}
			assert.ErrorIs(t, err, ratelimit.ErrUnavailable, missing)
			for _, key := range f.client.Keys(t.Context(), "*").Val() {
				assert.Positive(t, f.client.PTTL(t.Context(), key).Val(), "%s is missing: %s", missing, key)
			}
		}
	}
	for range 2 {
		p, err := semaphore("", 2).Acquire(t.Context(), "k2", 2)
		require.NoError(t, err, "these commands are enough")
		require.NoError(t, p.Extend(t.Context()))
		require.NoError(t, p.Release(t.Context()))
	}
}

// inOneCall makes two decisions share a call, and checks that both have charged their costs.
func (f *fixture) inOneCall(client *redis.Client, limit ratelimit.Limit, what string) {
	l, err := New(client, limit, &Options{Timeout: 10 * time.Second})
	require.NoError(f.t, err)
	full, err := New(f.client, limit, &Options{Timeout: 10 * time.Second})
	require.NoError(f.t, err)
	old, fresh := f.left(full, "k"), limit.Capacity()
	onOld, onFresh := newQueued(l, "k", 1), newQueued(l, what, 1)
	together(f.t.Context(), l, onFresh, onOld)
	if allowed, _ := onOld.decided(f.t.Context()); allowed {
		old--
	}
	if allowed, _ := onFresh.decided(f.t.Context()); allowed {
		fresh--
	}
	assert.Equal(f.t, old, f.left(full, "k"), what)
	assert.Equal(f.t, fresh, f.left(full, what), what)
}
