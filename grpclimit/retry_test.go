package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// retryPolicy is the clients' service config. Its own backoff is very short.
// So all five attempts are denied unless the client obeys the server.
const retryPolicy = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`

// attempts counts a server's decisions.
type attempts struct {
	mu      sync.Mutex
	arrived int
	waits   time.Duration // the waits demanded by the server, in whole milliseconds
}

// decided counts a call, and records the wait demanded by a denial.
func (a *attempts) decided(e grpclimit.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.arrived++
	a.waits += e.Decision.Delay
	if e.Outcome == httplimit.OutcomeDenied {
		a.waits += (e.Decision.RetryAfter + time.Millisecond - 1).Truncate(time.Millisecond)
	}
}

// take returns how many attempts were made since the last call of take.
func (a *attempts) take() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, a.arrived = a.arrived, 0
	return n
}

// limitedServer returns a server with one limit for all calls, and the counter of its decisions.
func limitedServer(t testing.TB, limit ratelimit.Limit, cost int, opts ...grpc.ServerOption) (*grpc.Server, *attempts) {
	t.Helper()
	a := new(attempts)
	l := interceptor(t, ratelimit.Map(ratelimit.Must(ratelimit.New[string](limit, nil)), everyone), grpclimit.Options{
		Cost: func(*grpclimit.Call) int { return cost }, OnDecision: a.decided,
	})
	return new(service).server(append(opts, with(l)...)...), a
}

// ways are kinds of calls. Each is charged once, as it begins.
var ways = map[string]func(ctx context.Context, c testgrpc.TestServiceClient) error{
	"unary": func(ctx context.Context, c testgrpc.TestServiceClient) error {
		_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		return err
	},
	"stream": func(ctx context.Context, c testgrpc.TestServiceClient) error {
		a, echoed := open(ctx, c, 3)
		if a.code == codes.OK && echoed != 3 {
			return fmt.Errorf("%d of 3 messages came back", echoed)
		}
		return status.Error(a.code, a.message)
	},
}

// waiting returns a limit of each algorithm, with a cost. A second call with this cost must wait for up to d, or 2·d.
func waiting(d time.Duration) map[string]struct {
	limit ratelimit.Limit
	cost  int
} {
	rate := ratelimit.Per(1, d)
	return map[string]struct {
		limit ratelimit.Limit
		cost  int
	}{
		"token bucket":           {ratelimit.TokenBucket(rate, 1), 1},
		"token bucket, a burst":  {ratelimit.TokenBucket(ratelimit.Per(3, d), 3), 3},
		"token bucket, in part":  {ratelimit.TokenBucket(ratelimit.Per(3, d), 4), 3},
		"leaky bucket":           {ratelimit.LeakyBucket(rate, 1), 1},
		"fixed window":           {ratelimit.FixedWindow(rate), 1},
		"fixed window, of three": {ratelimit.FixedWindow(ratelimit.Per(3, d)), 3},
		"sliding log":            {ratelimit.SlidingLog(rate), 1},
		"sliding counter":        {ratelimit.SlidingCounter(ratelimit.Per(3, d)), 2},
	}
}

// In a bubble of testing/synctest, a call takes no time. So if the server's wait
// is a nanosecond too short, the retry is denied. A wait of weeks ends at once.
func TestStockClientSucceedsAtItsFirstRetryExactly(t *testing.T) {
	for _, d := range []time.Duration{
		1, 999, time.Microsecond, 999_999, time.Millisecond, 1_000_001, time.Second / 7, time.Second / 3,
		time.Second, 2500 * time.Millisecond, time.Minute, time.Hour + 1, 24 * time.Hour, 10 * 24 * time.Hour,
	} {
		for name, row := range waiting(d) {
			for way, do := range ways {
				bubble(t, fmt.Sprintf("%v %s %s", d, name, way), func(t *testing.T) {
					server, a := limitedServer(t, row.limit, row.cost)
					client := inBubble(t, server, grpc.WithDefaultServiceConfig(retryPolicy))
					denied, begin := 0, time.Now()
					for range 8 {
						require.NoError(t, do(t.Context(), client))
						n := a.take()
						require.LessOrEqual(t, n, 2, "never denied twice")
						denied += n - 1
					}
					assert.GreaterOrEqual(t, denied, 4, "not all went through at once")
					assert.Equal(t, a.waits, time.Since(begin), "for as long as it should, and no longer")
				})
			}
		}
	}
}

// inBubble serves over a pipe in memory, and returns a client.
func inBubble(t testing.TB, server *grpc.Server, opts ...grpc.DialOption) testgrpc.TestServiceClient {
	t.Helper()
	return testgrpc.NewTestServiceClient(connInBubble(t, server, opts...))
}

func connInBubble(t testing.TB, server *grpc.Server, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	lis := bufconn.Listen(1 << 16)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:bubble", append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the test may have closed it
	return conn
}

// untilDenied makes calls, for a minute at most, until the given number was denied, each exactly once.
func untilDenied(t *testing.T, times int, a *attempts, do func() error) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for denied := 0; denied < times; {
		if time.Now().After(end) {
			t.Logf("denied %d times only: each call takes too long here to come too early", denied)
			return
		}
		require.NoError(t, do())
		n := a.take()
		require.LessOrEqual(t, n, 2, "denied twice")
		denied += n - 1
	}
}

// A call is not retried if it can never pass, or if its wait is longer than a pushback can express.
func TestStockClientDoesNotRetryWithoutHope(t *testing.T) {
	for name, row := range map[string]struct {
		limit ratelimit.Limit
		cost  int
		first codes.Code // the code of a first call
	}{
		"blocked":                   {ratelimit.Blocked(), 1, codes.ResourceExhausted},
		"cost above the limit":      {ratelimit.TokenBucket(ratelimit.PerSecond(5), 5), 6, codes.ResourceExhausted},
		"free in more than 24 days": {ratelimit.TokenBucket(ratelimit.Per(1, 25*24*time.Hour), 1), 1, codes.OK},
	} {
		for way, do := range ways {
			bubble(t, name+" "+way, func(t *testing.T) {
				server, a := limitedServer(t, row.limit, row.cost)
				client := inBubble(t, server, grpc.WithDefaultServiceConfig(retryPolicy))
				begin := time.Now()
				assert.Equal(t, row.first, status.Code(do(t.Context(), client)))
				assert.Equal(t, codes.ResourceExhausted, status.Code(do(t.Context(), client)))
				assert.Equal(t, 2, a.take(), "each once")
				assert.Zero(t, time.Since(begin))
			})
		}
	}
}
