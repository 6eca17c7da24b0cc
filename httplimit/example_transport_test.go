package httplimit_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// A client that keeps to 10 requests a second to each host, obeys the host's own limit,
// and sends a refused request again once.
func ExampleNewTransport() {
	refused := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !refused {
			refused = true
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer server.Close()

	perHost, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 5), nil)
	if err != nil {
		log.Fatal(err)
	}
	limiter := ratelimit.Map(perHost, httplimit.TargetHost)
	transport, err := httplimit.NewTransport(nil, limiter, &httplimit.TransportOptions{MaxRetries: 1})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}

	start := time.Now()
	resp, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	resp.Body.Close()
	fmt.Println(resp.Status, time.Since(start) >= time.Second)
	// Output:
	// 200 OK true
}

// A server announces the quota of the day in a field of its own, beside the usual fields. The client obeys both: the advice is added.
func ExampleAdvice() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("RateLimit", `"minute";r=20;t=30`)
		w.Header().Set("X-Quota-Today", "0")
	}))
	defer server.Close()
	perHost := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))
	transport, err := httplimit.NewTransport(nil, ratelimit.Map(perHost, httplimit.TargetHost), &httplimit.TransportOptions{
		Advice: func(resp *http.Response) (a httplimit.Advice, ok bool) {
			left, err := strconv.ParseInt(resp.Header.Get("X-Quota-Today"), 10, 64)
			a.Budgets, a.Adds = []httplimit.AdviceBudget{{Name: "today", Left: left, Reset: time.Hour}}, true
			return a, err == nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	for range 2 {
		resp, err := client.Get(server.URL)
		if err != nil {
			fmt.Println(errors.Is(err, ratelimit.ErrLimited))
			continue
		}
		resp.Body.Close()
		fmt.Println(resp.Status)
	}
	// Output:
	// 200 OK
	// true
}
