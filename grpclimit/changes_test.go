package grpclimit_test

import (
	"context"
	"testing"
	"time"

	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
)

// Calls of a client follow each change of its limiter, but for those whose instants are at most 100 ms ahead.
func TestCallsOfAClientFollowEachChange(t *testing.T) {
	linetest.Way{Booked: 100 * time.Millisecond, New: func(t *testing.T, limit ratelimit.Limit) (linetest.Budget, func(context.Context, int) error) {
		l := ratelimit.Must(ratelimit.New[string](limit, nil))
		client, _ := pacedInBubble(t, newScript(nil), ratelimit.Map(l, func(*grpclimit.Call) (string, error) { return "k", nil }), grpclimit.ClientOptions{
			MaxWait: -1,
			Cost:    func(c *grpclimit.Call) int { return int(c.Request.(*testgrpc.SimpleRequest).ResponseSize) },
		})
		return l, func(ctx context.Context, cost int) error {
			_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: int32(cost)}) //nolint:gosec // a cost of a test
			return err
		}
	}}.Test(t)
}
