package httplimit_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// A reverse proxy's Transport would have to wait for longer than
// MaxWait. The proxy answers 429 with the time to retry, not 502.
func ExampleNewTransport_reverseProxy() {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "90")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer api.Close()
	unlimited := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))
	transport, err := httplimit.NewTransport(nil, ratelimit.Map(unlimited, httplimit.TargetHost), nil) // MaxWait is a minute
	if err != nil {
		log.Fatal(err)
	}
	target, err := url.Parse(api.URL)
	if err != nil {
		log.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		var late *ratelimit.LateError
		if !errors.As(err, &late) {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		seconds := int64((late.RetryAfter() + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", fmt.Sprint(max(1, seconds)))
		w.WriteHeader(http.StatusTooManyRequests)
	}

	for range 2 { // the API refuses the first request, and the Transport the second
		w := httptest.NewRecorder()
		proxy.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		after := w.Header().Get("Retry-After")
		fmt.Println(w.Code, after >= "85" && after <= "90")
	}
	// Output:
	// 429 true
	// 429 true
}
