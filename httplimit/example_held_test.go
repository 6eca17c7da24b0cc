package httplimit_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// bodyFirst reads each request's body before next gets the request. Until the
// body is read, net/http does not notice that a client of HTTP/1 has left.
func bodyFirst(next http.Handler, most int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
		if err != nil {
			http.Error(w, "the body is too long, or ends early", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// A leaky bucket holds requests. If a client leaves, its request
// gives its place back, provided that its body was read before.
func ExampleMiddleware_Wrap_held() {
	limit := ratelimit.Must(httplimit.PerIP(ratelimit.LeakyBucket(ratelimit.PerSecond(10), 20), nil))
	upload := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, n, "bytes")
	})
	h := bodyFirst(limit.Wrap(upload), 1<<20)

	r := httptest.NewRequest("POST", "/", bytes.NewReader(make([]byte, 1000)))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Print(w.Body)
	// Output: 1000 bytes
}

// A shutdown ends the waits of held requests.
func ExampleMiddleware_RefuseHeld() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "served") })
	limit := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), &httplimit.Options{MaxHold: time.Second}))
	server := &http.Server{Handler: limit.Wrap(handler)}
	server.RegisterOnShutdown(limit.RefuseHeld)
	fmt.Println(server.Shutdown(context.Background()))
	// Output: <nil>
}
