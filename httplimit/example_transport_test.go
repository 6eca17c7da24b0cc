package httplimit_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// A client keeps to 10 requests a second to each host, obeys the host's own limit, and repeats a refused request once.
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

// A server announces the day's quota in a field of its own, beside the usual fields.
func ExampleAdviceOf() {
	advice := func(resp *http.Response) (httplimit.Advice, bool) {
		a := httplimit.AdviceOf(resp)
		if left, err := strconv.ParseInt(resp.Header.Get("X-Quota-Today"), 10, 64); err == nil {
			a.Budgets = append(a.Budgets, httplimit.AdviceBudget{Name: "today", Left: left, Reset: time.Hour})
		}
		return a, true
	}
	// httplimit.TransportOptions{Advice: advice} obeys both. Here, one response's advice:
	a, _ := advice(&http.Response{StatusCode: http.StatusOK, Header: http.Header{
		"Ratelimit":     {`"minute";r=20;t=30`},
		"X-Quota-Today": {"5000"},
	}})
	for _, b := range a.Budgets {
		fmt.Println(b.Name, b.Left, b.Reset)
	}
	// Output:
	// minute 20 30s
	// today 5000 1h0m0s
}
