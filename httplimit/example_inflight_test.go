package httplimit_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

// Each address has 10 requests served at once. All addresses together have as many as the backend can take: at most 100.
func ExampleNewInflight() {
	limiter, err := inflight.New(10, &inflight.Options[netip.Addr]{Total: 100, MaxQueue: 5})
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.NewInflight(limiter, httplimit.RemoteIP, nil)
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	show(limit.Wrap(hello), request("GET", "/"))
	fmt.Println(limit.Stats().Admitted, "served,", limit.Stats().Shed, "without room")
	// Output:
	// 200
	// 1 served, 0 without room
}

// The client has as many requests in flight to each host as the host can serve at once.
func ExampleNewTransport_inflight() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer server.Close()
	limiter, err := inflight.New(1000, &inflight.Options[string]{Adaptive: inflight.Learn(nil), MaxQueue: 1000})
	if err != nil {
		log.Fatal(err)
	}
	transport, err := httplimit.NewTransport(nil, nil, &httplimit.TransportOptions{Inflight: limiter})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	resp, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close() // the request is in flight until then
	fmt.Println(resp.Status)
	// Output: 200 OK
}
