// Llmgateway runs examples/llmgateway as a fleet: three gateways, as behind a load balancer.
// Tenants share one language model's tokens a minute, by plan. The rules are in rules.yaml,
// and the budgets on Redis. While Redis is down, each gateway has a third of the limit.
//
//	go -C examples/servers run ./llmgateway -upstream https://api.example.com/v1/chat/completions
//	curl -H 'Authorization: Bearer gold-key' -d '{"max_tokens":100,"messages":[…]}' http://127.0.0.1:8081/
//
// It starts the three gateways on ports from 8081 on, and a Redis server unless -redis names one.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/examples/servers/store"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// gateways is the number of processes.
const gateways = 3

//go:embed rules.yaml
var rules []byte

func main() {
	upstream := flag.String("upstream", "", "`URL` of the model")
	addr := flag.String("redis", "", "`host:port` of Redis; empty: start one")
	first := flag.Int("port", 8081, "the first gateway's port; 0: any free ports")
	worker := flag.Bool("worker", false, "be one of the gateways; the example sets it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *worker {
		err = serve(ctx, *upstream, *addr, *first)
	} else {
		err = run(ctx, *upstream, *addr, *first, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run starts Redis if necessary, and the gateways. They end with the context.
func run(ctx context.Context, upstream, addr string, first int, out io.Writer) error {
	if addr == "" {
		s, err := store.Start(false)
		if err != nil {
			return err
		}
		defer s.Close()
		addr = s.Addr()
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	all, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, gateways)
	for i := range gateways {
		port := first
		if first > 0 {
			port += i
		}
		cmd := exec.CommandContext(all, self, "-worker", "-upstream", upstream, "-redis", addr, "-port", strconv.Itoa(port))
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it gives back its units
		cmd.WaitDelay = 10 * time.Second
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() { ended <- cmd.Wait() }()
	}
	err = <-ended
	stop()
	for range gateways - 1 {
		<-ended
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// serve runs one gateway.
func serve(ctx context.Context, upstream, addr string, port int) error {
	set, err := policy.Parse(rules)
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	g, err := newGateway(set, policyredis.New(client, nil), upstream, os.Getenv("UPSTREAM_KEY"), http.DefaultTransport)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	fmt.Printf("gateway on http://%v\n", l.Addr())
	server := &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		bounded, stop := context.WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		_ = server.Shutdown(bounded)
	}()
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	bounded, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	return g.policies.Flush(bounded) // so that the other gateways have the units at once
}
