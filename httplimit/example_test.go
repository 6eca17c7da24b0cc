package httplimit_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// show sends a request, and prints the response's status and some of its header fields.
func show(h http.Handler, r *http.Request, fields ...string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Print(w.Code)
	for _, name := range fields {
		fmt.Print(" ", w.Header().Get(name))
	}
	fmt.Println()
}

func request(method, path string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = "192.0.2.1:1234"
	return r
}

// Each address may send 2 requests at once, and 10 a minute in the long run.
func Example() {
	perIP, err := ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerMinute(10), 2).Named("ip"), nil)
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.New(ratelimit.Map(perIP, httplimit.RemoteIP), nil)
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })

	server := httptest.NewServer(limit.Wrap(hello))
	defer server.Close()
	for range 3 {
		resp, err := http.Get(server.URL)
		if err != nil {
			log.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(resp.StatusCode, resp.Header.Get("RateLimit-Policy"))
		fmt.Println(string(text))
	}
	// Output:
	// 200 "ip";q=2;w=12;weir-refill
	// hello
	// 200 "ip";q=2;w=12;weir-refill
	// hello
	// 429 "ip";q=2;w=12;weir-refill
	// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"violated-policies":["ip"]}
}

// Each API key has a budget. A request without a key is charged to its address, so its 401 is limited, too.
func Example_withoutKey() {
	perKey := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(5000)).Named("key"), nil))
	perIP := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("anonymous"), nil))
	apiKey := httplimit.APIKey("X-API-Key")
	limit := ratelimit.Must(httplimit.New(ratelimit.Must(ratelimit.All(
		ratelimit.By(perKey, keyfunc.Optional(apiKey)),
		ratelimit.By(perIP, keyfunc.Otherwise(apiKey, httplimit.RemoteIP)),
	)), nil))
	h := limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-API-Key") != "s3cret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	for range 3 {
		show(h, request("GET", "/"))
	}
	known := request("GET", "/")
	known.Header.Set("X-API-Key", "s3cret")
	show(h, known)
	// Output:
	// 401
	// 401
	// 429
	// 200
}

// Three limits decide on one request. All are charged, or none:
// the address's, the API key's if there is one, and everybody's.
func Example_layers() {
	perIP := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerSecond(10), 20).Named("ip"), nil))
	perKey := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(5)).Named("key"), nil))
	global := ratelimit.Must(ratelimit.New[struct{}](ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000).Named("global"), nil))

	all, err := ratelimit.All(
		ratelimit.By(perIP, httplimit.RemoteIP),
		ratelimit.By(perKey, keyfunc.Optional(httplimit.APIKey("X-API-Key"))),
		ratelimit.By(global, func(*http.Request) (struct{}, error) { return struct{}{}, nil }),
	)
	if err != nil {
		log.Fatal(err)
	}
	limit := ratelimit.Must(httplimit.New(all, nil))

	mux := http.NewServeMux()
	mux.HandleFunc("GET /items", func(http.ResponseWriter, *http.Request) {})
	h := limit.Wrap(mux)

	r := request("GET", "/items")
	show(h, r, "RateLimit-Policy")
	r.Header.Set("X-API-Key", "s3cret")
	show(h, r, "RateLimit")
	// Output:
	// 200 "ip";q=20;w=2;weir-refill, "key";q=5;w=3600, "global";q=1000;w=1;weir-refill
	// 200 "key";r=4;t=3600
}

// Customers have a budget for each API key, all others one for each address. An unknown key is
// answered with 401. The outer limit counts these answers, so clients cannot guess keys without limit.
func Example_unknownKeys() {
	customers := map[keyfunc.Hash]bool{keyfunc.HashOf("s3cret"): true}
	apiKey := httplimit.APIKey("X-API-Key")
	customer := func(r *http.Request) (keyfunc.Hash, error) {
		key, err := apiKey(r)
		if err == nil && !customers[key] {
			err = fmt.Errorf("%w: unknown API key", keyfunc.ErrMalformedKey)
		}
		return key, err
	}
	perKey := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(5000)).Named("key"), nil))
	perIP := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("anonymous"), nil))
	limit := ratelimit.Must(httplimit.New(ratelimit.Must(ratelimit.All(
		ratelimit.By(perKey, keyfunc.Optional(customer)),
		ratelimit.By(perIP, keyfunc.Otherwise(customer, httplimit.RemoteIP)),
	)), &httplimit.Options{KeyCode: http.StatusUnauthorized, Logger: slog.New(slog.DiscardHandler)}))
	guesses := ratelimit.Must(httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(3)).Named("guesses"),
		&httplimit.Options{Settle: httplimit.ChargeOnly(http.StatusUnauthorized)}))

	h := guesses.Wrap(limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	for _, key := range []string{"", "", "", "s3cret", "guess", "guess", "guess", "s3cret"} {
		r := request("GET", "/")
		if key != "" {
			r.Header.Set("X-API-Key", key)
		}
		fmt.Printf("%q: ", key)
		show(h, r)
	}
	// Output:
	// "": 200
	// "": 200
	// "": 429
	// "s3cret": 200
	// "guess": 401
	// "guess": 401
	// "guess": 401
	// "s3cret": 429
}

// Behind proxies, list them. Only the entries added to X-Forwarded-For by listed proxies are believed.
func ExampleClientIP() {
	clientIP, err := httplimit.ClientIP(httplimit.ClientIPOptions{
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	})
	if err != nil {
		log.Fatal(err)
	}
	r := request("GET", "/")
	r.Header.Set("X-Forwarded-For", "6.6.6.6, 203.0.113.7")

	r.RemoteAddr = "10.0.0.1:9000" // the proxy: it has added 203.0.113.7
	fmt.Println(clientIP(r))
	r.RemoteAddr = "192.0.2.1:1234" // an impostor
	fmt.Println(clientIP(r))
	// Output:
	// 203.0.113.7 <nil>
	// 192.0.2.1 <nil>
}

// Only failed logins count: three for each name from each address. A limit by address
// comes first, then MaxBytesHandler: the name is in the body, so reading the body must
// not cost the server much. PostFormValue reads no query, because logs would keep it.
func ExampleChargeOnly() {
	perIP := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(5), 20), nil))
	attempts := ratelimit.Must(ratelimit.New[keyfunc.Pair[netip.Addr, string]](
		ratelimit.FixedWindow(ratelimit.Per(3, 15*time.Minute)).Named("login"), nil))
	name := func(r *http.Request) (string, error) {
		if name := r.PostFormValue("name"); name != "" && len(name) <= 100 {
			return name, nil
		}
		return "", keyfunc.ErrNoKey // answered with 400; "" would be one key for all of them
	}
	perName := ratelimit.Must(httplimit.New(
		ratelimit.Map(attempts, keyfunc.Join(httplimit.RemoteIP, name)),
		&httplimit.Options{Settle: httplimit.ChargeOnly(http.StatusUnauthorized), Logger: slog.New(slog.DiscardHandler)},
	))
	login := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("password") != "right" {
			http.Error(w, "wrong password", http.StatusUnauthorized)
		}
	})
	h := perIP.Wrap(http.MaxBytesHandler(perName.Wrap(login), 4<<10))

	for _, form := range []string{"name=alice&password=right", "name=alice&password=a", "name=alice&password=b",
		"name=alice&password=c", "name=alice&password=right", "name=bob&password=right", "password=right",
		"name=" + strings.Repeat("x", 8<<10)} {
		r := request("POST", "/login")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Body = io.NopCloser(strings.NewReader(form))
		show(h, r)
	}
	// Output:
	// 200
	// 401
	// 401
	// 401
	// 429
	// 200
	// 400
	// 400
}

// Plans are chosen by API key. The table of plans holds hashes of keys, and so does the limiter.
func ExampleBearerToken() {
	plans := map[keyfunc.Hash]ratelimit.Limit{
		keyfunc.HashOf("s3cret"): ratelimit.FixedWindow(ratelimit.PerHour(5000)).Named("key"),
	}
	perKey := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(60)).Named("key"),
		&ratelimit.Options[keyfunc.Hash]{
			LimitFor: func(key keyfunc.Hash) ratelimit.Limit { return plans[key] },
		}))
	limit := ratelimit.Must(httplimit.New(ratelimit.Map(perKey, httplimit.BearerToken), nil))
	h := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, token := range []string{"s3cret", "another"} {
		r := request("GET", "/")
		r.Header.Set("Authorization", "Bearer "+token)
		show(h, r, "RateLimit")
	}
	// Output:
	// 200 "key";r=4999;t=3600
	// 200 "key";r=59;t=3600
}

// Each address has a limit for each route. Inside the mux, the pattern is known.
func ExamplePattern() {
	perRoute := ratelimit.Must(ratelimit.New[keyfunc.Pair[netip.Addr, string]](ratelimit.FixedWindow(ratelimit.PerMinute(2)), nil))
	limit := ratelimit.Must(httplimit.New(
		ratelimit.Map(perRoute, keyfunc.Join(httplimit.RemoteIP, httplimit.Pattern)), nil))
	done := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", limit.Wrap(done))
	mux.Handle("GET /users/{id}", limit.Wrap(done))
	for _, path := range []string{"/items/1", "/items/2", "/items/3", "/users/1"} {
		show(mux, request("GET", path))
	}
	// Output:
	// 200
	// 200
	// 429
	// 200
}

// A limit is tried on real traffic before it denies anything.
func ExampleOptions_shadow() {
	l := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.FixedWindow(ratelimit.PerMinute(1)), nil))
	limit := ratelimit.Must(httplimit.New(ratelimit.Map(l, httplimit.RemoteIP), &httplimit.Options{
		Shadow: true,
		OnDecision: func(e httplimit.Event) {
			fmt.Println(e.Request.URL.Path, e.Outcome)
		},
	}))
	h := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	show(h, request("GET", "/a"))
	show(h, request("GET", "/b"))
	s := limit.Stats()
	fmt.Println(s.Allowed, "allowed,", s.Denied, "would be denied")
	// Output:
	// /a allowed
	// 200
	// /b denied
	// 200
	// 1 allowed, 1 would be denied
}

// Here, a request without a key is the client's mistake, not the server's.
func ExampleOptions_onError() {
	l := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerMinute(60)), nil))
	limit := ratelimit.Must(httplimit.New(ratelimit.Map(l, httplimit.BearerToken), &httplimit.Options{
		Logger: slog.New(slog.DiscardHandler), // the example needs no log
		OnError: func(w http.ResponseWriter, e httplimit.Event) {
			if errors.Is(e.Err, keyfunc.ErrNoKey) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
				return
			}
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		},
	}))
	show(limit.Wrap(http.NotFoundHandler()), request("GET", "/"))
	// Output:
	// 401
}

// Cloudflare sends the client's address in its own field. Only Cloudflare may set the field, so it is
// trusted from Cloudflare's addresses alone. The two prefixes stand for Cloudflare's published list.
func ExampleClientIP_cdn() {
	clientIP, err := httplimit.ClientIP(httplimit.ClientIPOptions{Header: "CF-Connecting-IP", TrustedProxies: []netip.Prefix{
		netip.MustParsePrefix("173.245.48.0/20"), netip.MustParsePrefix("2400:cb00::/32"),
	}})
	if err != nil {
		log.Fatal(err)
	}
	r := request("GET", "/")
	r.Header.Set("CF-Connecting-IP", "203.0.113.7")
	r.RemoteAddr = "173.245.48.1:9000" // Cloudflare
	fmt.Println(clientIP(r))
	r.RemoteAddr = "192.0.2.1:1234" // an impostor
	fmt.Println(clientIP(r))
	// Output:
	// 203.0.113.7 <nil>
	// 192.0.2.1 <nil>
}

// Each client address has one limit. Inside a mux, wrap single handlers instead.
func ExamplePerIP() {
	limit, err := httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerMinute(10), 1), nil)
	if err != nil {
		log.Fatal(err)
	}
	h := limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	for _, addr := range []string{"192.0.2.1:1001", "192.0.2.1:1002", "192.0.2.2:1003"} {
		r := request("GET", "/")
		r.RemoteAddr = addr
		show(h, r)
	}
	// Output:
	// 200
	// 429
	// 200
}
