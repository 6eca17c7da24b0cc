// Gateway is a reverse proxy that holds requests to the rules in a
// file. It follows changes of the file. README.md shows it at work.
//
//	go -C examples/servers run ./gateway
//
// The user comes from the header X-User, and the plan from X-Plan. In a real gateway
// both come from the authentication, because a client must not be able to choose them.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/policy"
)

func main() {
	addr := flag.String("addr", "localhost:8081", "address of the gateway")
	rules := flag.String("rules", "", "file with the rules; if empty, a copy of the example's own in a folder for temporary files")
	backend := flag.String("backend", "", "URL to pass requests on to; a backend of its own if empty")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr, *rules, *backend); err != nil {
		log.Fatal(err)
	}
}

// ownRules are the example's rules.
//
//go:embed rules.yaml
var ownRules []byte

// copyRules copies the example's rules to a new file, which a reader of the example may change.
func copyRules() (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "gateway")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "rules.yaml")
	return path, func() { _ = os.RemoveAll(dir) }, os.WriteFile(path, ownRules, 0o600)
}

// run serves until the context ends.
func run(ctx context.Context, addr, rules, backend string) error {
	if backend == "" {
		own := httptest.NewServer(http.HandlerFunc(hello))
		defer own.Close()
		backend = own.URL
	}
	if rules == "" {
		path, remove, err := copyRules()
		if err != nil {
			return err
		}
		defer remove()
		rules = path
	}
	h, follow, err := gateway(rules, backend)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	slog.Info("the gateway listens", "addr", l.Addr().String(), "rules", rules)
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		_ = follow(ctx) // returns when the context ends
		_ = s.Close()
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// gateway returns the handler, and a function that keeps its rules up to date.
func gateway(rules, backend string) (http.Handler, func(context.Context) error, error) {
	target, err := url.Parse(backend)
	if err != nil {
		return nil, nil, err
	}
	file := policy.File(rules)
	set, err := file.Load(context.Background())
	if err != nil {
		return nil, nil, err
	}
	policies, err := policy.New(set, &policy.Options{OnDecision: logShadows})
	if err != nil {
		return nil, nil, err
	}
	limit, err := httplimit.New(ratelimit.Map(policies, attributes), nil)
	if err != nil {
		return nil, nil, err
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	return limit.Wrap(proxy), func(ctx context.Context) error { return policy.Follow(ctx, policies, file) }, nil
}

// attributes returns a request's attributes for the rules.
func attributes(r *http.Request) (policy.Request, error) {
	return policy.HTTP(r, policy.Attributes{"user": r.Header.Get("X-User"), "plan": r.Header.Get("X-Plan")}), nil
}

// logShadows logs the denials that shadow rules would make.
func logShadows(d policy.Decision) {
	for _, r := range d.Rules {
		if r.Shadow && r.Answered && !r.Decision.Allowed && d.Decision.Allowed {
			slog.Info("a shadow rule would have denied", "rule", r.Rule, "retry_after", r.Decision.RetryAfter)
		}
	}
}

func hello(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello from %s\n", r.URL.Path) }
