// Grpc is a server whose HTTP requests and gRPC calls spend the same budgets, by the rules in a
// file. README.md shows it at work.
//
//	go -C examples/servers run ./grpc
//
// The user is the bearer token in Authorization. In a real server it comes from what checks
// the token.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/policy"
)

//go:embed rules.yaml
var rules []byte

func main() {
	web := flag.String("http", "localhost:8082", "address for HTTP")
	rpc := flag.String("grpc", "localhost:8083", "address for gRPC")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, rules, *web, *rpc, func(web, rpc string) {
		fmt.Printf("HTTP on %s, gRPC on %s\n", web, rpc)
	}); err != nil {
		log.Fatal(err)
	}
}

// run serves both until the context ends, and tells the addresses once it listens.
func run(ctx context.Context, rules []byte, web, rpc string, ready func(web, rpc string)) error {
	overHTTP, overGRPC, err := limits(rules)
	if err != nil {
		return err
	}
	webs, err := net.Listen("tcp", web)
	if err != nil {
		return err
	}
	rpcs, err := net.Listen("tcp", rpc)
	if err != nil {
		return errors.Join(err, webs.Close())
	}
	site := &http.Server{Handler: overHTTP.Wrap(http.HandlerFunc(hello))}
	calls := newServer(overGRPC)
	ready(webs.Addr().String(), rpcs.Addr().String())
	failed := make(chan error, 2)
	go func() { failed <- site.Serve(webs) }()
	go func() { failed <- calls.Serve(rpcs) }()
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	calls.Stop()
	return errors.Join(err, site.Close())
}

// limits returns what holds HTTP requests and gRPC calls to the same rules and budgets.
func limits(rules []byte) (*httplimit.Middleware, *grpclimit.Interceptor, error) {
	set, err := policy.Parse(rules)
	if err != nil {
		return nil, nil, err
	}
	policies, err := policy.New(set, nil)
	if err != nil {
		return nil, nil, err
	}
	overHTTP, err := httplimit.New(ratelimit.Map(policies, func(r *http.Request) (policy.Request, error) {
		user, err := httplimit.BearerToken(r)
		return policy.HTTP(r, policy.Attributes{"user": user.String()}), err
	}), nil)
	if err != nil {
		return nil, nil, err
	}
	overGRPC, err := grpclimit.New(ratelimit.Map(policies, func(c *grpclimit.Call) (policy.Request, error) {
		user, err := grpclimit.BearerToken(c)
		return grpclimit.PolicyRequest(c, policy.Attributes{"user": user.String()}), err
	}), &grpclimit.Options{
		Skip: grpclimit.SkipServices("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"),
	})
	return overHTTP, overGRPC, err
}

// newServer serves gRPC's own health service, which is all that this example has to offer.
func newServer(limit *grpclimit.Interceptor) *grpc.Server {
	s := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(limit.StreamServerInterceptor()),
	)
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	return s
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }
