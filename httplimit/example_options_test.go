package httplimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Each tenant may send 100 requests a minute. The route names the tenant. The server's own errors are not charged.
func ExamplePerKey() {
	limit := ratelimit.Must(httplimit.PerKey(ratelimit.FixedWindow(ratelimit.PerMinute(100)), httplimit.PathValue("tenant"),
		&httplimit.Options{Settle: httplimit.RefundServerErrors}))
	mux := http.NewServeMux()
	mux.Handle("/tenants/{tenant}/items", limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})))
	for _, r := range []*http.Request{
		request("GET", "/tenants/acme/items"), request("DELETE", "/tenants/acme/items"), request("GET", "/tenants/acme/items"),
	} {
		show(mux, r, "RateLimit")
	}
	// Output:
	// 200 "default";r=99;t=60
	// 500 "default";r=98;t=60
	// 200 "default";r=98;t=60
}

// Each dialect announces a limit of 10 requests an hour in its own fields.
func ExampleDialect() {
	for _, dialect := range []httplimit.Dialect{
		httplimit.DialectDraft11, httplimit.DialectDraft06, httplimit.DialectXEpoch, httplimit.DialectXDelta, httplimit.DialectNone,
	} {
		limit := ratelimit.Must(httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(10)).Named("ip"), &httplimit.Options{
			Dialect: dialect,
			Now:     func() time.Time { return time.Unix(1_900_000_000, 0) }, // in a program, leave it out
		}))
		w := httptest.NewRecorder()
		limit.Wrap(http.NotFoundHandler()).ServeHTTP(w, request("GET", "/"))
		var fields []string
		for _, name := range []string{"RateLimit-Policy", "RateLimit", "RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
			if value := w.Header().Get(name); value != "" {
				fields = append(fields, name+": "+value)
			}
		}
		fmt.Println(len(fields), strings.Join(fields, ", "))
	}
	// Output:
	// 2 RateLimit-Policy: "ip";q=10;w=3600, RateLimit: "ip";r=9;t=3600
	// 2 RateLimit-Remaining: 9, RateLimit-Reset: 3600
	// 2 X-RateLimit-Remaining: 9, X-RateLimit-Reset: 1900003600
	// 2 X-RateLimit-Remaining: 9, X-RateLimit-Reset: 3600
	// 0
}

// The operator logs failed decisions. Denials are the client's business alone.
func ExampleOutcome() {
	cost := func(r *http.Request) int { return len(r.URL.Path) }
	limit := ratelimit.Must(httplimit.PerKey(ratelimit.FixedWindow(ratelimit.PerHour(10)), httplimit.APIKey("X-API-Key"), &httplimit.Options{
		Cost:   cost,
		Logger: slog.New(slog.DiscardHandler), // the example needs no log
		OnDecision: func(e httplimit.Event) {
			switch e.Outcome {
			case httplimit.OutcomeFailed, httplimit.OutcomeFailedOpen:
				fmt.Print("tell the operator: ")
			case httplimit.OutcomeExceeds, httplimit.OutcomeRejected:
				fmt.Print("the client's mistake: ")
			}
			fmt.Print(e.Outcome, ", ")
		},
	}))
	h := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, path := range []string{"/too/long/to/pass", "/items", "/items"} {
		r := request("GET", path)
		r.Header.Set("X-API-Key", "s3cret")
		show(h, r)
	}
	show(h, request("GET", "/items"))
	// Output:
	// the client's mistake: exceeds, 403
	// allowed, 200
	// denied, 429
	// the client's mistake: rejected, 400
}

// A language model's client declares each request's estimated tokens, and settles the used tokens.
func ExampleWithCost() {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	tokens := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerMinute(1000)), nil))
	transport := ratelimit.Must(httplimit.NewTransport(nil, ratelimit.Map(tokens, httplimit.TargetHost), nil))
	client := &http.Client{Transport: transport}

	ctx := httplimit.WithCost(context.Background(), 800) // an estimate
	r, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(r)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	if err := httplimit.SettleCost(ctx, 150); err != nil { // the usage in the response
		fmt.Println(err)
	}
	d, err := tokens.Peek(context.Background(), server.URL, 1)
	fmt.Println(d.Remaining, err)
	// Output: 850 <nil>
}

// A busy server answers 420, a status unknown to an adaptive limit. The Outcome function reports it as an overload.
func ExampleTransportOptions_outcome() {
	limiter, err := inflight.New(1000, &inflight.Options[string]{Adaptive: inflight.Learn(nil), MaxQueue: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	transport, err := httplimit.NewTransport(nil, nil, &httplimit.TransportOptions{
		Inflight: limiter,
		MaxWait:  time.Second,
		Outcome: func(_ *http.Request, resp *http.Response, err error, usual inflight.Outcome) inflight.Outcome {
			if err == nil && resp.StatusCode == 420 {
				return inflight.Dropped
			}
			return usual
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(420) }))
	defer server.Close()
	resp, err := (&http.Client{Transport: transport}).Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 420
}

// A key function of your own: it returns the hash of the session in a cookie. Without a session, its error is ErrNoKey.
func ExampleNew_cookie() {
	session := func(r *http.Request) (keyfunc.Hash, error) {
		c, err := r.Cookie("session")
		if err != nil || c.Value == "" {
			return keyfunc.Hash{}, fmt.Errorf("%w: no session", keyfunc.ErrNoKey)
		}
		return keyfunc.HashOf(c.Value), nil
	}
	perSession := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	limit := ratelimit.Must(httplimit.New(ratelimit.Map(perSession, session), &httplimit.Options{
		KeyCode: http.StatusUnauthorized,
		Logger:  slog.New(slog.DiscardHandler), // the example needs no log
	}))
	h := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	show(h, request("GET", "/"))
	r := request("GET", "/")
	r.AddCookie(&http.Cookie{Name: "session", Value: "s3cret"})
	show(h, r)
	show(h, r)
	// Output:
	// 401
	// 200
	// 429
}
