package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// The client sends at most 10 calls a second to each target, obeys the server's own limit, and repeats a refused call once.
func ExampleNewClient() {
	limit := ratelimit.Must(grpclimit.PerIP(ratelimit.SlidingLog(ratelimit.Per(1, 200*time.Millisecond)), nil))
	addr, stop := exampleServer(limit)
	defer stop()

	perTarget, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 5), nil)
	if err != nil {
		log.Fatal(err)
	}
	limiter := ratelimit.Map(perTarget, func(c *grpclimit.Call) (string, error) { return c.Target, nil })
	client, err := grpclimit.NewClient(limiter, &grpclimit.ClientOptions{MaxRetries: 1})
	if err != nil {
		log.Fatal(err)
	}
	conn, err := grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(client.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(client.StreamClientInterceptor()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for client.Stats().Refused == 0 {
		if _, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, new(testgrpc.SimpleRequest)); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("refused:", client.Stats().Refused, "sent again:", client.Stats().Retried)
	// Output:
	// refused: 1 sent again: 1
}

// A client without this library retries denied calls after the server's wait, because its service config has a retry policy.
func ExampleInterceptor_retryPolicy() {
	limit := ratelimit.Must(grpclimit.PerIP(ratelimit.SlidingLog(ratelimit.Per(1, 200*time.Millisecond)), nil))
	addr, stop := exampleServer(limit)
	defer stop()

	conn, err := grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
			"maxAttempts": 2, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
			"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for limit.Stats().Denied < 3 {
		if _, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, new(testgrpc.SimpleRequest)); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("denied:", limit.Stats().Denied)
	// Output:
	// denied: 3
}

// pong is a service whose answers are empty.
type pong struct {
	testgrpc.UnimplementedTestServiceServer
}

func (*pong) UnaryCall(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return new(testgrpc.SimpleResponse), nil
}

func (*pong) FullDuplexCall(stream testgrpc.TestService_FullDuplexCallServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := stream.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
}

// exampleServer serves on the loopback interface.
func exampleServer(limit *grpclimit.Interceptor) (addr string, stop func()) {
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(limit.StreamServerInterceptor()))
	testgrpc.RegisterTestServiceServer(server, new(pong))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(lis) }()
	return lis.Addr().String(), server.Stop
}
