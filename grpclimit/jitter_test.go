package grpclimit_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// waitTold returns the wait in RetryInfo that a client gets.
func waitTold(t *testing.T, i *grpclimit.Interceptor, ctx context.Context) time.Duration {
	t.Helper()
	_, err := i.UnaryServerInterceptor()(ctx, nil, &grpc.UnaryServerInfo{}, unreachable(t))
	info, ok := status.Convert(err).Details()[0].(*errdetails.RetryInfo)
	require.True(t, ok)
	return info.RetryDelay.AsDuration()
}

func TestJitterSpreadsClients(t *testing.T) {
	now := time.Unix(1000, 0)
	i := interceptor(t, &stub{decision: ratelimit.Decision{RetryAfter: 10 * time.Second}}, grpclimit.Options{
		Jitter: time.Minute, Now: func() time.Time { return now },
	})
	told := map[time.Duration]int{}
	for n := range 200 {
		ctx := incoming(tcp(fmt.Sprintf("192.0.2.%d:%d", n, 1000+n)))
		wait := waitTold(t, i, ctx)
		assert.GreaterOrEqual(t, wait, 10*time.Second, "never too early")
		assert.LessOrEqual(t, wait, 11*time.Second, "at most a tenth more")
		assert.Equal(t, wait, waitTold(t, i, incoming(tcp(fmt.Sprintf("192.0.2.%d:9", n)))), "a client's share stays, on another connection too")
		told[wait]++
	}
	assert.Greater(t, len(told), 100)
}

func TestTheTrailerHasTheSameWaitAsRetryInfo(t *testing.T) {
	i := interceptor(t, &stub{decision: ratelimit.Decision{RetryAfter: time.Hour}}, grpclimit.Options{
		Jitter: time.Minute, JitterBy: func(c *grpclimit.Call) string { return c.FullMethod },
	})
	a := call(context.Background(), serve(t, &service{}, with(i)...))
	require.Len(t, a.pushback, 1)
	assert.Equal(t, strconv.FormatInt(a.retry.RetryDelay.AsDuration().Milliseconds(), 10), a.pushback[0])
}
