package grpclimit_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestAUnaryCallBeyondTheLimitIsDenied(t *testing.T) {
	limit := hourly(t, 2, grpclimit.Options{})
	client := serve(t, &service{}, with(limit)...)
	for range 2 {
		assert.Equal(t, codes.OK, call(context.Background(), client).code)
	}
	a := call(context.Background(), client)
	assertDenied(t, a, time.Hour)
	assert.Equal(t, httplimit.Stats{Allowed: 2, Denied: 1}, limit.Stats())
}

func TestAStreamBeyondTheLimitIsDeniedWhenItOpens(t *testing.T) {
	limit := hourly(t, 1, grpclimit.Options{})
	client := serve(t, &service{}, with(limit)...)
	a, echoed := open(context.Background(), client, 5)
	assert.Equal(t, codes.OK, a.code)
	assert.Equal(t, 5, echoed, "messages are free")
	a, echoed = open(context.Background(), client, 5)
	assertDenied(t, a, time.Hour)
	assert.Zero(t, echoed)
	assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 1}, limit.Stats())
}

// assertDenied checks all parts of an answer to a call that the limit "hourly" denies.
func assertDenied(t *testing.T, a answer, wait time.Duration) {
	t.Helper()
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Equal(t, "rate limit exceeded: hourly", a.message)
	require.NotNil(t, a.retry)
	assert.Equal(t, wait, a.retry.RetryDelay.AsDuration())
	require.NotNil(t, a.quota)
	require.Len(t, a.quota.Violations, 1)
	assert.Equal(t, "hourly", a.quota.Violations[0].Subject)
	assert.Equal(t, "hourly", a.quota.Violations[0].QuotaId)
	assert.Regexp(t, `^\d+ per 1h0m0s, \d+ at once$`, a.quota.Violations[0].Description)
	assert.Positive(t, a.quota.Violations[0].QuotaValue)
	assert.Equal(t, []string{"3600000"}, a.pushback)
	assert.Empty(t, a.header, "a client does not retry an answer with headers")
}

func TestTheWaitIsRoundedUpToAMillisecond(t *testing.T) {
	for _, row := range []struct {
		name     string
		wait     time.Duration
		retry    time.Duration
		pushback []string
	}{
		{"a nanosecond", 1, time.Millisecond, []string{"1"}},
		{"a millisecond", time.Millisecond, time.Millisecond, []string{"1"}},
		{"a nanosecond above a second", time.Second + 1, time.Second + time.Millisecond, []string{"1001"}},
		{"the most that an int32 holds", math.MaxInt32 * time.Millisecond, math.MaxInt32 * time.Millisecond, []string{"2147483647"}},
		{"longer than a client can be told", math.MaxInt32*time.Millisecond + 1, math.MaxInt32*time.Millisecond + time.Millisecond, []string{"-1"}},
		{"the longest", math.MaxInt64, math.MaxInt64, []string{"-1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			limit := interceptor(t, &stub{decision: ratelimit.Decision{RetryAfter: row.wait}}, grpclimit.Options{})
			a := call(context.Background(), serve(t, &service{}, with(limit)...))
			require.NotNil(t, a.retry)
			if row.wait == math.MaxInt64 { // whose Duration holds no more than that
				assert.Equal(t, row.wait, a.retry.RetryDelay.AsDuration())
			} else {
				assert.Equal(t, row.retry, a.retry.RetryDelay.AsDuration())
			}
			require.NoError(t, a.retry.RetryDelay.CheckValid())
			assert.Equal(t, row.pushback, a.pushback)
		})
	}
}

func TestADenialWithoutAKnownWaitLeavesTheClientToItsBackoff(t *testing.T) {
	limit := interceptor(t, &stub{}, grpclimit.Options{})
	a := call(context.Background(), serve(t, &service{}, with(limit)...))
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Nil(t, a.retry)
	assert.Empty(t, a.pushback)
	require.NotNil(t, a.quota)
	assert.Equal(t, "default", a.quota.Violations[0].Subject, "a limit without a name")
	assert.Empty(t, a.quota.Violations[0].Description, "a limiter that does not tell its limit")
}

func TestACallThatCanNeverPassIsNotToBeRetried(t *testing.T) {
	for name, row := range map[string]struct {
		limit   ratelimit.Limit
		message string
	}{
		"a cost above the capacity": {ratelimit.TokenBucket(ratelimit.PerSecond(1), 4).Named("small"),
			"the call costs more than its limit ever allows: do not retry: small"},
		"a blocked key": {ratelimit.Blocked().Named("small"), "the key is blocked: do not retry: small"},
	} {
		t.Run(name, func(t *testing.T) {
			i := interceptor(t, limiterOf(t, new(ratelimittest.Clock), row.limit), grpclimit.Options{
				Cost: func(*grpclimit.Call) int { return 5 },
			})
			client := serve(t, &service{}, with(i)...)
			streamed, _ := open(context.Background(), client, 0)
			for _, a := range []answer{call(context.Background(), client), streamed} {
				assert.Equal(t, codes.ResourceExhausted, a.code)
				assert.Equal(t, row.message, a.message)
				assert.Nil(t, a.retry)
				assert.Equal(t, []string{"-1"}, a.pushback)
				require.NotNil(t, a.quota)
				assert.Equal(t, "small", a.quota.Violations[0].Subject)
				assert.Empty(t, a.header)
			}
			assert.Equal(t, httplimit.Stats{Exceeds: 2}, i.Stats())
		})
	}
}
