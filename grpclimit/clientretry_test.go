package grpclimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// A denial comes without headers. A handler that has sent some has begun its work.
func TestCallIsSentAgainOnlyIfTheServerHasSentNoHeaders(t *testing.T) {
	for name, row := range map[string]struct {
		headers metadata.MD // nil if none are sent
		runs    int
	}{
		"no headers":    {nil, 2},
		"empty headers": {metadata.MD{}, 1},
		"headers":       {metadata.Pairs("charged", "yes"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs := 0
				s := &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
					if row.headers != nil {
						assert.NoError(t, grpc.SendHeader(ctx, row.headers))
					}
					if runs++; runs == 1 {
						return nil, denial(time.Second).err // a backend's, passed on
					}
					return &testgrpc.SimpleResponse{}, nil
				}}
				server := grpc.NewServer()
				testgrpc.RegisterTestServiceServer(server, s)
				c, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{MaxRetries: 3})
				a := call(t.Context(), inBubble(t, server, dialling...))
				assert.Equal(t, row.runs, runs)
				assert.Equal(t, row.runs == 1, a.code == codes.ResourceExhausted)
				assert.Equal(t, row.headers.Get("charged"), a.header.Get("charged"), "the caller's option is obeyed, too")
				assert.Equal(t, uint64(row.runs-1), c.Stats().Retried)
				assert.Equal(t, uint64(1), c.Stats().Refused, "its time is obeyed in any case")
			})
		})
	}
}

// The server's answer is worth more than the reason why the call is not sent a second time. And the call was sent: an error of the Client's
// own would claim that it was not.
func TestCallerGetsTheRefusalIfTheRetryRunsOutOfTime(t *testing.T) {
	for name, row := range map[string]struct {
		limit ratelimit.Limit
		opts  grpclimit.ClientOptions
		time  time.Duration
		sent  int
		want  time.Duration
	}{
		"no time to retry":      {ratelimit.Unlimited(), grpclimit.ClientOptions{MaxRetries: 5}, 500 * time.Millisecond, 1, 0},
		"a refusal is refunded": {ratelimit.TokenBucket(ratelimit.Per(1, 10*time.Second), 1), grpclimit.ClientOptions{MaxRetries: 1}, 9 * time.Second, 2, time.Second},
		"MaxWait is over":       {ratelimit.Unlimited(), grpclimit.ClientOptions{MaxRetries: 5, MaxWait: 2500 * time.Millisecond}, 9 * time.Second, 3, 2 * time.Second},
		"cancelled":             {ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), grpclimit.ClientOptions{MaxRetries: 5}, 9 * time.Second, 3, 2500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(func(int) reply { return denial(time.Second) })
				client, c := pacedInBubble(t, s, byTarget(t, row.limit), row.opts)
				ctx, cancel := context.WithTimeout(t.Context(), row.time)
				defer cancel()
				if name == "cancelled" {
					time.AfterFunc(row.want, cancel)
				}
				a := call(ctx, client)
				assert.Equal(t, codes.ResourceExhausted, a.code)
				assert.Equal(t, "refused", a.message)
				assert.NotNil(t, a.retry)
				assert.Equal(t, row.want, time.Since(s.begin))
				assert.Len(t, s.times(), row.sent)
				sent := uint64(row.sent)
				assert.Equal(t, httplimit.TransportStats{Sent: sent, Waited: c.Stats().Waited, Refused: sent, Retried: sent - 1}, c.Stats(), "none failed: it was sent")
			})
		})
	}
}

func TestCallersOptionsSeeEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(once(denial(time.Second)))
		client, _ := pacedInBubble(t, s, unlimited(t), grpclimit.ClientOptions{MaxRetries: 1})
		var ends []codes.Code
		_, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}, grpc.OnFinish(func(err error) { ends = append(ends, status.Code(err)) }))
		assert.NoError(t, err)
		assert.Equal(t, []codes.Code{codes.ResourceExhausted, codes.OK}, ends)
	})
}
