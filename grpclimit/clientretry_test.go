package grpclimit_test

import (
	"context"
	"io"
	"testing"
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
	"github.com/weir-go/ratelimit/inflight"
)

// A denial has no headers. If a handler has sent headers, it has begun to work.
func TestCallIsSentAgainOnlyIfTheServerHasSentNoHeaders(t *testing.T) {
	for name, row := range map[string]struct {
		headers metadata.MD // nil if the handler sends none
		runs    int
	}{
		"no headers":    {nil, 2},
		"empty headers": {metadata.MD{}, 1},
		"headers":       {metadata.Pairs("charged", "yes"), 1},
	} {
		bubble(t, name, func(t *testing.T) {
			runs := 0
			s := &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				if row.headers != nil {
					assert.NoError(t, grpc.SendHeader(ctx, row.headers))
				}
				if runs++; runs == 1 {
					return nil, denial(time.Second).err // a backend's denial, returned by the handler
				}
				return &testgrpc.SimpleResponse{}, nil
			}}
			server := s.server()
			c, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{MaxRetries: 3})
			a := call(t.Context(), inBubble(t, server, dialling...))
			assert.Equal(t, row.runs, runs)
			assert.Equal(t, row.runs == 1, a.code == codes.ResourceExhausted)
			assert.Equal(t, row.headers.Get("charged"), a.header.Get("charged"), "the caller's option is obeyed, too")
			assert.Equal(t, uint64(row.runs-1), c.Stats().Retried)
			assert.Equal(t, uint64(1), c.Stats().Refused, "its time is obeyed in any case")
		})
	}
}

// The caller should get the server's answer, not the reason why there was no
// second attempt. An error of the Client would mean that the call was never sent.
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
		"MaxRetries are over":   {ratelimit.Unlimited(), grpclimit.ClientOptions{MaxRetries: 2}, 9 * time.Second, 3, 2 * time.Second},
		"cancelled":             {ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), grpclimit.ClientOptions{MaxRetries: 5}, 9 * time.Second, 3, 2500 * time.Millisecond},
	} {
		bubble(t, name, func(t *testing.T) {
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
	}
}

// A function in the options may panic, or an invoker, for example in another
// interceptor. Only its own call ends, and nothing of the call is left.
func TestAPanicLeavesNothingOfACall(t *testing.T) {
	armed, permits := false, ratelimit.Must(inflight.New[string](1, nil))
	boom := func() {
		if armed {
			panic("now")
		}
	}
	for name, opts := range map[string]grpclimit.ClientOptions{
		"Cost":                      {Cost: func(*grpclimit.Call) int { boom(); return 1 }},
		"Key":                       {Key: func(*grpclimit.Call) string { boom(); return "" }},
		"Outcome":                   {Inflight: permits, Outcome: func(_ *grpclimit.Call, _ error, usual inflight.Outcome) inflight.Outcome { boom(); return usual }},
		"an invoker":                {},
		"an invoker, under permits": {Inflight: permits},
	} {
		bubble(t, name, func(t *testing.T) {
			l := unlimited(t)
			if opts.Inflight != nil {
				l = nil
			}
			invoked := func() error {
				if opts.Cost == nil && opts.Key == nil && opts.Outcome == nil {
					boom()
				}
				return io.ErrUnexpectedEOF
			}
			c := ratelimit.Must(grpclimit.NewClient(l, &opts))
			for way, call := range map[string]func() error{
				"unary": func() error {
					return c.UnaryClientInterceptor()(t.Context(), "/a/b", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return invoked() })
				},
				"stream": func() error {
					_, err := c.StreamClientInterceptor()(t.Context(), new(grpc.StreamDesc), nil, "/a/b", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
						return nil, invoked()
					})
					return err
				},
			} {
				armed = true
				assert.PanicsWithValue(t, "now", func() { _ = call() }, way)
				armed = false
				assert.ErrorIs(t, call(), io.ErrUnexpectedEOF, "%s: the next one is sent", way)
			}
			assert.True(t, l == nil || c.Keys() == 0)
			assert.Zero(t, permits.Totals().InFlight)
		})
	}
}

// A failed connection is not a refusal by the server.
func TestACallThatCannotBeSentLeavesNothing(t *testing.T) {
	for want, fail := range map[codes.Code]func(*grpc.Server, *grpc.ClientConn){
		codes.Unavailable: func(s *grpc.Server, _ *grpc.ClientConn) { s.Stop() },
		codes.Canceled:    func(_ *grpc.Server, conn *grpc.ClientConn) { _ = conn.Close() },
	} {
		bubble(t, want.String(), func(t *testing.T) {
			c, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{MaxRetries: 3})
			server := newScript(nil).server()
			conn := connInBubble(t, server, dialling...)
			fail(server, conn)
			for way, do := range ways {
				assert.Equal(t, want, status.Code(do(t.Context(), testgrpc.NewTestServiceClient(conn))), way)
			}
			assert.Equal(t, httplimit.TransportStats{Sent: 2}, c.Stats())
			assert.Zero(t, c.Keys())
		})
	}
}
