package httplimit_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
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
