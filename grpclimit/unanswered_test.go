package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/grpclimit"
)

// A client that hangs up, or sets a short deadline, before it is answered: its call could have ended in any way.
func TestACallWhoseClientLeavesBeforeTheAnswerIsCharged(t *testing.T) {
	for name, row := range map[string]struct {
		charged codes.Code
		returns error // after the client has left
		want    int
	}{
		"a success counts":                          {codes.OK, context.Canceled, 1},
		"a failure counts":                          {codes.Unauthenticated, context.Canceled, 1},
		"the handler has an error of its own":       {codes.OK, status.Error(codes.Internal, ""), 1},
		"the handler has the status that counts":    {codes.Unauthenticated, status.Error(codes.Unauthenticated, ""), 1},
		"the handler succeeds, and failures count":  {codes.Unauthenticated, nil, 0},
		"the handler succeeds, and successes count": {codes.OK, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l, left := budget(t)
			i := interceptor(t, l, grpclimit.Options{Settle: grpclimit.ChargeOnly(row.charged)})
			began, ended := make(chan struct{}), make(chan struct{})
			end := func(ctx context.Context) error {
				close(began)
				<-ctx.Done()
				return row.returns
			}
			client := serve(t, &service{
				unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
					return &testgrpc.SimpleResponse{}, end(ctx)
				},
				stream: func(s testgrpc.TestService_FullDuplexCallServer) error { return end(s.Context()) },
			}, grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				defer close(ended)
				return i.UnaryServerInterceptor()(ctx, req, info, h)
			}), grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
				defer close(ended)
				return i.StreamServerInterceptor()(srv, s, info, h)
			}))
			for n, try := range []func(context.Context){
				func(ctx context.Context) { call(ctx, client) },
				func(ctx context.Context) { open(ctx, client, 0) },
			} {
				began, ended = make(chan struct{}), make(chan struct{})
				ctx, hangUp := context.WithTimeout(t.Context(), time.Minute)
				done := make(chan struct{})
				go func() { defer close(done); try(ctx) }()
				<-began
				hangUp()
				<-done
				<-ended
				assert.Equal(t, 10-row.want*(n+1), left())
			}
		})
	}
}

// A client that watches a stream ends it by leaving. What it has read is an answer.
func TestAStreamThatItsClientLeavesAfterAMessageCountsAsASuccess(t *testing.T) {
	for charged, want := range map[codes.Code]int{codes.OK: 1, codes.Unauthenticated: 0} {
		l, left := budget(t)
		i := interceptor(t, l, grpclimit.Options{Settle: grpclimit.ChargeOnly(charged)})
		ended := make(chan struct{})
		client := serve(t, &service{stream: func(s testgrpc.TestService_FullDuplexCallServer) error {
			assert.NoError(t, s.Send(&testgrpc.StreamingOutputCallResponse{}))
			<-s.Context().Done()
			return s.Context().Err()
		}}, grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			defer close(ended)
			return i.StreamServerInterceptor()(srv, s, info, h)
		}))
		ctx, hangUp := context.WithCancel(t.Context())
		stream, err := client.FullDuplexCall(ctx)
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		hangUp()
		<-ended
		assert.Equal(t, 10-want, left(), charged)
	}
}
