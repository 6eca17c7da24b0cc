package main

import (
	"crypto/subtle"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

//go:embed index.html
var page []byte

// plans are the limits of known API keys, by the key's hash.
var plans = map[keyfunc.Hash]ratelimit.Limit{
	keyfunc.HashOf("gold-key"): ratelimit.FixedWindow(ratelimit.PerMinute(8)).Named("key"),
}

// clientKey finds a client's address, given its request.
type clientKey = func(*http.Request) (netip.Addr, error)

// newServer returns the routes behind their limits.
func newServer(proxies []netip.Prefix) (http.Handler, error) {
	client, err := httplimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: proxies})
	if err != nil {
		return nil, err
	}
	api, err := apiLimit(client)
	if err != nil {
		return nil, err
	}
	login, err := loginLimit(client)
	if err != nil {
		return nil, err
	}
	demo, err := newDemo(client)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", servePage)
	mux.HandleFunc("GET /healthz", serveHealth)
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]httplimit.Stats{"api": api.Stats(), "login": login.Stats()})
	})
	mux.HandleFunc("GET /api/items", serveItems)
	mux.Handle("POST /login", http.MaxBytesHandler(login.Wrap(http.HandlerFunc(serveLogin)), 4<<10))
	mux.Handle("GET /demo/burst", demo)
	return api.Wrap(mux), nil
}

// apiLimit holds requests to three limits, and charges either all or none.
// A request without an API key is counted by its address, but not by a key.
func apiLimit(client clientKey) (*httplimit.Middleware, error) {
	perIP, err := ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerSecond(5), 10).Named("ip"), nil)
	if err != nil {
		return nil, err
	}
	perKey, err := ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("key"), &ratelimit.Options[keyfunc.Hash]{
		LimitFor: func(key keyfunc.Hash) ratelimit.Limit { return plans[key] },
	})
	if err != nil {
		return nil, err
	}
	global, err := ratelimit.New[struct{}](ratelimit.TokenBucket(ratelimit.PerSecond(500), 500).Named("global"), nil)
	if err != nil {
		return nil, err
	}
	layers, err := ratelimit.All(
		ratelimit.By(perIP, client),
		ratelimit.By(perKey, keyfunc.Optional(httplimit.APIKey("X-API-Key"))),
		ratelimit.Global[*http.Request](global),
	)
	if err != nil {
		return nil, err
	}
	return httplimit.New(layers, &httplimit.Options{
		Skip:   func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		Jitter: 5 * time.Second,
	})
}

// loginLimit permits each address three wrong guesses a minute for each name. To find the name, it must read the body.
// So the limit by address comes before it, and MaxBytesHandler bounds the reading. A form without a name gets 400.
func loginLimit(client clientKey) (*httplimit.Middleware, error) {
	failures, err := ratelimit.New[keyfunc.Pair[netip.Addr, string]](ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("login"), nil)
	if err != nil {
		return nil, err
	}
	name := func(r *http.Request) (string, error) {
		if name := r.PostFormValue("name"); name != "" {
			return name, nil
		}
		return "", fmt.Errorf("%w: no name to log in", keyfunc.ErrNoKey)
	}
	return httplimit.New(ratelimit.Map(failures, keyfunc.Join(client, name)), &httplimit.Options{
		Settle: httplimit.ChargeOnly(http.StatusUnauthorized),
	})
}

func servePage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page)
}

func serveHealth(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }

func serveItems(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, []string{"sluice", "gate", "spillway"})
}

// serveLogin has one user: alice, with the password "weir".
func serveLogin(w http.ResponseWriter, r *http.Request) {
	right := subtle.ConstantTimeCompare([]byte(r.PostFormValue("password")), []byte("weir")) == 1
	if r.PostFormValue("name") != "alice" || !right {
		http.Error(w, "wrong name or password", http.StatusUnauthorized)
		return
	}
	_, _ = io.WriteString(w, "welcome\n")
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has gone
}
