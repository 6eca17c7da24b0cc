// Paths makes one decision of each kind after another, and writes for each what code has run, into a folder of its name. It is
// built with -cover by the test beside it.
package main

import (
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/coverage"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

type call struct{ user, ip, route string }

func main() {
	bucket := ratelimit.TokenBucket(ratelimit.PerSecond(10), 20)
	users, ips, routes := newLimiter(bucket), newLimiter(bucket), newLimiter(bucket)
	stack := ratelimit.Must(ratelimit.All(
		ratelimit.By(users, func(c call) (string, error) { return c.user, nil }),
		ratelimit.By(ips, func(c call) (string, error) { return c.ip, nil }),
		ratelimit.By(routes, func(c call) (string, error) { return c.route, nil })))
	known := call{"known", "known", "known"}
	perIP := ratelimit.Must(httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerDay(1)), nil)).Wrap(http.NotFoundHandler())
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	serve := func() { perIP.ServeHTTP(httptest.NewRecorder(), request) }
	serve()
	for name, decide := range map[string]func(){
		"known": func() { users.Allow("known", 1) },
		"first": func() { users.Allow("new", 1) },
		"stack": func() { stack.Allow(known, 1) },
		"http":  serve,
	} {
		stack.Allow(known, 1) // the keys are known, and the pools are filled
		must(coverage.ClearCounters())
		decide()
		dir := filepath.Join(os.Args[1], name)
		must(os.Mkdir(dir, 0o755))
		must(coverage.WriteMetaDir(dir))
		must(coverage.WriteCountersDir(dir))
	}
}

func newLimiter(limit ratelimit.Limit) *ratelimit.Keyed[string] {
	return ratelimit.Must(ratelimit.New[string](limit, nil))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
