package grpclimit_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log"
	"net"
	"net/netip"
	"net/url"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

// The whole server has at most 100 calls in flight, and each address at most 10. Each address may call each method
// twice a minute. The in-flight limit comes first: if the rate limit denies a call, its permit is given back at once.
func ExampleInterceptor_methodsAndCallsInFlight() {
	permits, err := inflight.New(10, &inflight.Options[netip.Addr]{Total: 100, MaxQueue: 5})
	if err != nil {
		log.Fatal(err)
	}
	inFlight, err := grpclimit.NewInflight(permits, grpclimit.RemoteIP, &grpclimit.InflightOptions{MaxWait: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	perMethod := ratelimit.Must(ratelimit.New[keyfunc.Pair[string, netip.Addr]](ratelimit.FixedWindow(ratelimit.PerMinute(2)), nil))
	rate, err := grpclimit.New(ratelimit.Map(perMethod, keyfunc.Join(grpclimit.Method, grpclimit.RemoteIP)), nil)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(inFlight.UnaryServerInterceptor(), rate.UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(inFlight.StreamServerInterceptor(), rate.StreamServerInterceptor()),
	)
	client, stop := connect(server)
	for range 3 {
		_, err := client.UnaryCall(context.Background(), new(testgrpc.SimpleRequest))
		fmt.Println(status.Code(err))
	}
	_, err = client.EmptyCall(context.Background(), new(testgrpc.Empty))
	fmt.Println(status.Code(err), "by the server, which has no such method")
	stop()
	fmt.Println(inFlight.Stats().Allowed, "allowed,", permits.Totals().InFlight, "in flight")
	// Output:
	// OK
	// OK
	// ResourceExhausted
	// Unimplemented by the server, which has no such method
	// 4 allowed, 0 in flight
}

// The client has at most 1000 calls in flight to each server, and fewer if the server's answers become slower under load.
func ExampleNewClient_inflight() {
	limiter, err := inflight.New(1000, &inflight.Options[string]{Adaptive: inflight.Learn(nil), MaxQueue: 1000})
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.NewClient(nil, &grpclimit.ClientOptions{Inflight: limiter, MaxWait: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	addr, stop := exampleServer(ratelimit.Must(grpclimit.PerIP(ratelimit.Unlimited(), nil)))
	defer stop()
	conn, err := grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(limit.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(limit.StreamClientInterceptor()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(context.Background(), new(testgrpc.SimpleRequest))
	fmt.Println(status.Code(err))
	// Output: OK
}

// By mistake, a server has demanded a wait of an hour. An operator resets the client's queue for the server.
func ExampleClient_Reset() {
	unlimited := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))
	client, err := grpclimit.NewClient(ratelimit.Map(unlimited, func(c *grpclimit.Call) (string, error) { return c.Target, nil }),
		&grpclimit.ClientOptions{Key: func(*grpclimit.Call) string { return "the server" }})
	if err != nil {
		log.Fatal(err)
	}
	answer, err := status.New(codes.ResourceExhausted, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Hour)})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	call := func(answer error) {
		err := client.UnaryClientInterceptor()(ctx, "/a.Service/Method", nil, nil, nil,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return answer })
		fmt.Println(status.Code(err))
	}
	call(answer.Err())
	call(nil)
	client.Reset("the server")
	call(nil)
	// Output:
	// ResourceExhausted
	// DeadlineExceeded
	// OK
}

// Key functions are tested without a server.
func ExampleNewCall() {
	clientIP, err := grpclimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4711}})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("x-forwarded-for", "203.0.113.7"))
	call := grpclimit.NewCall(ctx, "/shop.Orders/List", nil)
	fmt.Println(clientIP(call))
	fmt.Println(grpclimit.Service(call))
	// Output:
	// 203.0.113.7 <nil>
	// shop.Orders <nil>
}

// Clients present certificates, verified by crypto/tls. The keys are the names in them.
func ExampleSPIFFEID() {
	id, err := url.Parse("spiffe://example.org/billing")
	if err != nil {
		log.Fatal(err)
	}
	verified := &x509.Certificate{URIs: []*url.URL{id}, Subject: pkix.Name{CommonName: "billing", Organization: []string{"Example"}}}
	call := grpclimit.NewCall(peer.NewContext(context.Background(), &peer.Peer{
		AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{verified}}}},
	}), "/shop.Orders/List", nil)
	fmt.Println(grpclimit.SPIFFEID(call))
	fmt.Println(grpclimit.CertificateSubject(call))
	// Output:
	// spiffe://example.org/billing <nil>
	// CN=billing,O=Example <nil>
}

// Calls are not charged if they fail because of the server.
func ExampleRefundServerErrors() {
	limit := ratelimit.Must(grpclimit.New(
		ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil)), grpclimit.Service),
		&grpclimit.Options{Settle: grpclimit.RefundServerErrors}))
	for _, code := range []codes.Code{codes.Unavailable, codes.NotFound, codes.OK} {
		_, err := limit.UnaryServerInterceptor()(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/List"},
			func(context.Context, any) (any, error) { return nil, status.Error(code, "") })
		fmt.Println(status.Code(err))
	}
	// Output:
	// Unavailable
	// NotFound
	// ResourceExhausted
}
