package grpclimit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/grpclimit"
)

func TestTenantsOfAServerShareOneRate(t *testing.T) {
	shared, err := fair.New[string](ratelimit.TokenBucket(ratelimit.PerDay(1), 5), nil)
	require.NoError(t, err)
	limit, err := grpclimit.New(ratelimit.Map(shared, func(c *grpclimit.Call) (string, error) {
		return metadata.ValueFromIncomingContext(c.Context(), "tenant")[0], nil
	}), nil)
	require.NoError(t, err)
	client, stop := connect(grpc.NewServer(grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor())))
	defer stop()
	call := func(tenant string) codes.Code {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "tenant", tenant)
		_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		return status.Code(err)
	}
	for range 4 {
		require.Equal(t, codes.OK, call("greedy"))
	}
	require.Equal(t, codes.ResourceExhausted, call("greedy"), "alone it has four fifths of the burst")
	require.Equal(t, codes.OK, call("modest"))
}
