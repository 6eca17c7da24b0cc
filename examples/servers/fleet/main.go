// Fleet runs three HTTP servers behind one proxy. They share one limit in one Redis. The proxy's
// page sends load to them, and stops and restarts Redis. It shows all servers' admissions, the limit
// and the bound, and each decision's source: the shared store, a leased batch, or a server alone.
//
//	go -C examples/servers run ./fleet
//
// It starts its own redis-server. If none is installed, it starts an embedded server, and prints that.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "address of the page and of the proxy")
	embedded := flag.Bool("embedded", false, "use the embedded server even if there is a redis-server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, *embedded); err != nil {
		log.Fatal(err)
	}
}

// run serves until the context ends.
func run(ctx context.Context, addr string, embedded bool) error {
	f, err := newFleet(embedded)
	if err != nil {
		return err
	}
	defer f.close()
	log.Printf("Redis: %s", f.store.Name())
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	log.Printf("open http://%s", addr)
	return serve(ctx, l, f.handler(ctx))
}

// serve serves until the context ends.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.Shutdown(within); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return s.Close()
}
