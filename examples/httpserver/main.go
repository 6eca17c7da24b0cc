// Httpserver is a small API behind three limits: one by address, one by API key, and one for all requests together.
// Its login route counts only failures. The page at / sends bursts to each of five algorithms, and shows the answers.
//
//	go run ./examples/httpserver
//	curl -i localhost:8080/api/items
//
// Behind proxies, list their addresses: -proxies 10.0.0.0/8,fd00::/8.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "address to listen on")
	proxies := flag.String("proxies", "", "comma-separated prefixes of the proxies in front, whose X-Forwarded-For is believed")
	flag.Parse()
	trusted, err := parsePrefixes(*proxies)
	if err != nil {
		log.Fatalf("-proxies: %v", err)
	}
	handler, err := newServer(trusted)
	if err != nil {
		log.Fatal(err)
	}
	if err := serve(*addr, handler); err != nil {
		log.Fatal(err)
	}
}

func parsePrefixes(list string) (prefixes []netip.Prefix, err error) {
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}

// serve serves until it is interrupted.
func serve(addr string, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	server := &http.Server{Addr: addr, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	log.Printf("listening on http://%s", addr)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return server.Close()
}
