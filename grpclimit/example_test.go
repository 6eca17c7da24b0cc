package grpclimit_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// connect serves on the loopback interface, and returns a client.
func connect(server *grpc.Server) (client testgrpc.TestServiceClient, stop func()) {
	testgrpc.RegisterTestServiceServer(server, new(pong))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	return testgrpc.NewTestServiceClient(conn), func() { _ = conn.Close(); server.Stop() }
}

// Each client address has its own limit.
func Example() {
	limit, err := grpclimit.PerIP(ratelimit.TokenBucket(ratelimit.PerMinute(10), 2), nil)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(limit.StreamServerInterceptor()),
	)
	client, stop := connect(server)
	defer stop()
	for range 3 {
		_, err := client.UnaryCall(context.Background(), &testgrpc.SimpleRequest{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
}

// The answer contains the exceeded limit and the time to retry. A client
// with a retry policy in its service config waits for this time by itself.
func ExampleNew() {
	perKey, err := ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("hourly"), &ratelimit.Options[keyfunc.Hash]{
		Clock: new(ratelimittest.Clock), // a program omits the Clock
	})
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.New(ratelimit.Map(perKey, keyfunc.APIKey(grpclimit.Metadata("x-api-key"))), nil)
	if err != nil {
		log.Fatal(err)
	}
	client, stop := connect(grpc.NewServer(grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor())))
	defer stop()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-api-key", "a secret")
	for range 2 {
		var trailer metadata.MD
		_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Trailer(&trailer))
		fmt.Println(status.Code(err), trailer["grpc-retry-pushback-ms"])
		for _, detail := range status.Convert(err).Details() {
			switch d := detail.(type) {
			case *errdetails.RetryInfo:
				fmt.Println("retry after", d.RetryDelay.AsDuration())
			case *errdetails.QuotaFailure:
				fmt.Println("limit", d.Violations[0].QuotaId)
			}
		}
	}
	// Output:
	// OK []
	// ResourceExhausted [3600000]
	// retry after 1h0m0s
	// limit hourly
}

// Each API key has a budget. The limiter stores only the key's hash.
func ExampleMetadata_apiKey() {
	perKey, err := ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(5000)), nil)
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.New(ratelimit.Map(perKey, keyfunc.APIKey(grpclimit.Metadata("x-api-key"))), nil)
	if err != nil {
		log.Fatal(err)
	}
	client, stop := connect(grpc.NewServer(grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor())))
	defer stop()
	_, err = client.UnaryCall(context.Background(), &testgrpc.SimpleRequest{})
	fmt.Println(err)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-api-key", "a secret")
	_, err = client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
	fmt.Println(err)
	// Output:
	// rpc error: code = InvalidArgument desc = the key that calls are limited by is missing or malformed
	// <nil>
}

// A user's HTTP requests and gRPC calls spend one budget.
func ExampleNew_oneBudgetForHTTPAndGRPC() {
	perUser, err := ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(3)), nil)
	if err != nil {
		log.Fatal(err)
	}
	overHTTP, err := httplimit.New(ratelimit.Map(perUser, httplimit.BearerToken), nil)
	if err != nil {
		log.Fatal(err)
	}
	overGRPC, err := grpclimit.New(ratelimit.Map(perUser, keyfunc.BearerToken(grpclimit.Metadata("authorization"))), nil)
	if err != nil {
		log.Fatal(err)
	}

	web := httptest.NewServer(overHTTP.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer web.Close()
	get := func() string {
		r, _ := http.NewRequest(http.MethodGet, web.URL, nil)
		r.Header.Set("Authorization", "Bearer token-of-ann")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return err.Error()
		}
		_ = resp.Body.Close()
		return resp.Status
	}
	client, stop := connect(grpc.NewServer(grpc.ChainUnaryInterceptor(overGRPC.UnaryServerInterceptor())))
	defer stop()
	call := func() codes.Code {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer token-of-ann")
		_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		return status.Code(err)
	}

	fmt.Println(get())
	fmt.Println(call())
	fmt.Println(get())
	fmt.Println(call())
	fmt.Println(get())
	// Output:
	// 200 OK
	// OK
	// 200 OK
	// ResourceExhausted
	// 429 Too Many Requests
}

// A call has two limits: its user's, and its method's. All users share the method's limit.
func ExampleNew_layers() {
	perUser := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("user"), nil))
	perMethod := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(3)).Named("method"), nil))
	layers, err := ratelimit.All(
		ratelimit.By(perUser, grpclimit.Metadata("user")),
		ratelimit.By(perMethod, grpclimit.Method),
	)
	if err != nil {
		log.Fatal(err)
	}
	limit := ratelimit.Must(grpclimit.New(layers, nil))
	client, stop := connect(grpc.NewServer(grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor())))
	defer stop()
	for _, user := range []string{"ann", "ann", "ann", "bob", "bob"} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "user", user)
		_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		fmt.Printf("%s: %v, %q\n", user, status.Code(err), status.Convert(err).Message())
	}
	// Output:
	// ann: OK, ""
	// ann: OK, ""
	// ann: ResourceExhausted, "rate limit exceeded: user"
	// bob: OK, ""
	// bob: ResourceExhausted, "rate limit exceeded: method"
}

// Only failed logins count.
func ExampleChargeOnly() {
	perUser := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(2)), nil))
	limit := ratelimit.Must(grpclimit.New(ratelimit.Map(perUser, grpclimit.Metadata("user")), &grpclimit.Options{
		Settle: grpclimit.ChargeOnly(codes.Unauthenticated),
	}))
	login := func(_ context.Context, password any) (any, error) {
		if password != "right" {
			return nil, status.Error(codes.Unauthenticated, "wrong password")
		}
		return "welcome", nil
	}
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("user", "ann"))
	for _, password := range []string{"right", "right", "right", "guess", "guess", "guess", "right"} {
		_, err := limit.UnaryServerInterceptor()(ctx, password, &grpc.UnaryServerInfo{FullMethod: "/auth.Service/Login"}, login)
		fmt.Println(password, status.Code(err))
	}
	// Output:
	// right OK
	// right OK
	// right OK
	// guess Unauthenticated
	// guess Unauthenticated
	// guess ResourceExhausted
	// right ResourceExhausted
}

// Opening a stream is free. The stream is charged for each received message, by the message's size.
func ExampleOptions_chargeMessages() {
	bytes := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1000)), nil))
	everyone := func(*grpclimit.Call) (string, error) { return "everyone", nil }
	limit := ratelimit.Must(grpclimit.New(ratelimit.Map(bytes, everyone), &grpclimit.Options{
		ChargeMessages: true,
		Cost: func(c *grpclimit.Call) int {
			m, _ := c.Request.(*testgrpc.StreamingOutputCallRequest)
			return len(m.GetPayload().GetBody())
		},
		Skip: grpclimit.SkipServices(healthpb.Health_ServiceDesc.ServiceName),
	}))
	client, stop := connect(grpc.NewServer(grpc.ChainStreamInterceptor(limit.StreamServerInterceptor())))
	defer stop()
	stream, err := client.FullDuplexCall(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		_ = stream.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, 400)}})
		_, err := stream.Recv()
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
}

// At most one call of each method is served at a time.
func ExampleNewInflight() {
	permits, err := inflight.New[string](1, nil)
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.NewInflight(permits, grpclimit.Method, nil)
	if err != nil {
		log.Fatal(err)
	}
	call := limit.UnaryServerInterceptor()
	method := &grpc.UnaryServerInfo{FullMethod: "/reports.Service/Build"}
	_, err = call(context.Background(), nil, method, func(ctx context.Context, _ any) (any, error) {
		_, meanwhile := call(ctx, nil, method, nil)
		fmt.Println("meanwhile:", status.Code(meanwhile))
		return nil, nil
	})
	fmt.Println("first:", status.Code(err))
	// Output:
	// meanwhile: Unavailable
	// first: OK
}

// Shadow tries a limit on real traffic first: it denies nothing, and Stats counts the outcomes.
func Example_shadow() {
	counts := map[httplimit.Outcome]int{}
	limit := ratelimit.Must(grpclimit.PerIP(ratelimit.Limit{
		Algorithm: ratelimit.AlgorithmTokenBucket, Rate: ratelimit.Per(1, time.Hour), Burst: 1,
	}, &grpclimit.Options{
		Shadow:     true,
		OnDecision: func(e grpclimit.Event) { counts[e.Outcome]++ },
	}))
	client, stop := connect(grpc.NewServer(grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor())))
	for range 3 {
		if _, err := client.UnaryCall(context.Background(), &testgrpc.SimpleRequest{}); err != nil {
			log.Fatal(err)
		}
	}
	stop()
	fmt.Println(counts[httplimit.OutcomeAllowed], "allowed,", counts[httplimit.OutcomeDenied], "would have been denied")
	// Output: 1 allowed, 2 would have been denied
}
