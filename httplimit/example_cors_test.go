package httplimit_test

import (
	"fmt"
	"net/http"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// cors lets pages of one origin use the API. It stands around the limiter, so that
// denials also have its fields: without them, a browser hides the whole answer from
// the page. The page can read only the fields named in Access-Control-Expose-Headers.
func cors(origin string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin")
		if r.Header.Get("Origin") == origin {
			h.Set("Access-Control-Allow-Origin", origin)
			h.Set("Access-Control-Expose-Headers", "RateLimit, RateLimit-Policy, Retry-After")
		}
		next.ServeHTTP(w, r)
	})
}

// isPreflight reports whether a request is a CORS preflight. Other OPTIONS requests belong to the application.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// preflights answers CORS preflights.
func preflights(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isPreflight(r) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Access-Control-Allow-Methods", "GET, PUT")
		w.Header().Set("Access-Control-Max-Age", "86400")
		w.WriteHeader(http.StatusNoContent)
	})
}

// An API is used by pages of another origin. CORS is outside, the limiter inside, and preflights are not charged.
func ExampleOptions_cors() {
	limit := ratelimit.Must(httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerMinute(1)), &httplimit.Options{
		Skip: isPreflight, // their handler is cheap
	}))
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	h := cors("https://app.example", limit.Wrap(preflights(api)))

	preflight := request("OPTIONS", "/")
	preflight.Header.Set("Access-Control-Request-Method", "GET")
	for _, r := range []*http.Request{preflight, request("GET", "/"), preflight, request("GET", "/")} {
		r.Header.Set("Origin", "https://app.example")
		show(h, r, "Access-Control-Allow-Origin", "Access-Control-Expose-Headers")
	}
	// Output:
	// 204 https://app.example RateLimit, RateLimit-Policy, Retry-After
	// 200 https://app.example RateLimit, RateLimit-Policy, Retry-After
	// 204 https://app.example RateLimit, RateLimit-Policy, Retry-After
	// 429 https://app.example RateLimit, RateLimit-Policy, Retry-After
}
