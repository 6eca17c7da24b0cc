// Grpc is a server whose HTTP requests and gRPC calls spend the same budgets, under the rules
// in a file. It sends one user's requests and calls to itself in turn, and prints the answers.
//
//	go -C examples/servers run ./grpc
//	go -C examples/servers run ./grpc -serve    # goes on until it is stopped
//
// The user is the bearer token in Authorization. In a real server, the code that checks the token provides the user.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
)

//go:embed rules.yaml
var rules []byte

func main() {
	web := flag.String("http", "localhost:0", "address for HTTP; port 0 is any that is free")
	rpc := flag.String("grpc", "localhost:0", "address for gRPC")
	serve := flag.Bool("serve", false, "go on after the example's own requests and calls")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, end := context.WithCancel(ctx)
	defer end()
	shown := make(chan error, 1)
	if err := run(ctx, rules, *web, *rpc, func(web, rpc string) {
		fmt.Printf("HTTP on %s, gRPC on %s\n", web, rpc)
		go func() {
			err := show(ctx, os.Stdout, web, rpc)
			shown <- err
			if err != nil || !*serve {
				end()
			}
		}()
	}); err != nil {
		log.Fatal(err)
	}
	if err := <-shown; err != nil {
		log.Fatal(err)
	}
}

// show sends one user's requests and calls in turn, and prints the answers.
func show(ctx context.Context, out io.Writer, web, rpc string) error {
	conn, err := grpc.NewClient(rpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	health := healthpb.NewHealthClient(conn)
	for range 2 {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+web, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer ann")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		_ = resp.Body.Close() // only the status matters
		fmt.Fprintf(out, "HTTP: %s\n", resp.Status)

		call := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer ann")
		_, err = health.Check(call, new(healthpb.HealthCheckRequest))
		s := status.Convert(err)
		fmt.Fprintf(out, "gRPC: %v%s\n", s.Code(), retryAfter(s))
		if s.Code() != codes.OK && s.Code() != codes.ResourceExhausted {
			return err
		}
	}
	return nil
}

// retryAfter returns how long a denied call must wait before it may be retried.
func retryAfter(s *status.Status) string {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return fmt.Sprint(", retry after ", info.RetryDelay.AsDuration().Round(time.Millisecond))
		}
	}
	return ""
}

// run serves both until the context ends. When it listens, it passes the addresses to ready.
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

// limits returns the middleware and the interceptor. They hold HTTP requests and gRPC calls to the same rules and budgets.
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
	token := keyfunc.BearerToken(grpclimit.Metadata("authorization"))
	overGRPC, err := grpclimit.New(ratelimit.Map(policies, func(c *grpclimit.Call) (policy.Request, error) {
		user, err := token(c)
		return grpclimit.PolicyRequest(c, policy.Attributes{"user": user.String()}), err
	}), &grpclimit.Options{
		Skip: grpclimit.SkipServices("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"),
	})
	return overHTTP, overGRPC, err
}

// newServer returns a server with gRPC's health service, the only service of this example.
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
