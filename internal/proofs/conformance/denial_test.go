package conformance

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/didip/tollbooth/v8"
	"github.com/didip/tollbooth/v8/limiter"
	"github.com/go-chi/httprate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// middlewares limit each client's address to one request an hour, each one in its usual form.
var middlewares = map[string]func(tb testing.TB, next http.Handler) http.Handler{
	"httplimit": func(tb testing.TB, next http.Handler) http.Handler {
		l, err := ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerHour(1), 1), nil)
		require.NoError(tb, err)
		m, err := httplimit.New(ratelimit.Map(l, httplimit.RemoteIP), nil)
		require.NoError(tb, err)
		return m.Wrap(next)
	},
	"httplimit-layers": func(tb testing.TB, next http.Handler) http.Handler {
		l, err := ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerHour(1), 1), nil)
		require.NoError(tb, err)
		all, err := ratelimit.All(ratelimit.By(l, httplimit.RemoteIP))
		require.NoError(tb, err)
		m, err := httplimit.New(all, nil)
		require.NoError(tb, err)
		return m.Wrap(next)
	},
	"throttled": func(tb testing.TB, next http.Handler) http.Handler {
		store, err := memstore.NewCtx(65536)
		require.NoError(tb, err)
		l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerHour(1)})
		require.NoError(tb, err)
		m := throttled.HTTPRateLimiterCtx{RateLimiter: l, VaryBy: &throttled.VaryBy{RemoteAddr: true}}
		return m.RateLimit(next)
	},
	"httprate": func(_ testing.TB, next http.Handler) http.Handler {
		return httprate.LimitBy(1, time.Hour, func(r *http.Request) (string, error) {
			ip, _, err := net.SplitHostPort(r.RemoteAddr)
			return httprate.CanonicalizeIP(ip), err
		})(next)
	},
	"tollbooth": func(_ testing.TB, next http.Handler) http.Handler {
		l := tollbooth.NewLimiter(1.0/3600, nil).SetIPLookup(limiter.IPLookup{Name: "RemoteAddr"})
		return tollbooth.HTTPMiddleware(l)(next)
	},
}

// discard is a response writer that costs nothing: it has one header map for all responses.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// denial returns a function that serves the same denied request again.
func denial(tb testing.TB, name string) func() {
	h := middlewares[name](tb, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest("GET", "/items", nil)
	r.RemoteAddr = "192.0.2.1:1234"
	w := &discard{header: http.Header{}}
	again := func() {
		clear(w.header)
		w.status = http.StatusOK
		h.ServeHTTP(w, r)
	}
	for range 3 { // throttled and httprate allow one or two requests
		again()
	}
	require.Equal(tb, http.StatusTooManyRequests, w.status)
	return again
}

func BenchmarkDenial(b *testing.B) {
	for _, name := range []string{"httplimit", "httplimit-layers", "throttled", "httprate", "tollbooth"} {
		b.Run("middleware="+name, func(b *testing.B) {
			again := denial(b, name)
			b.ReportAllocs()
			for b.Loop() {
				again()
			}
		})
	}
}

func TestDenialAllocatesLessThanThatOfEachPeer(t *testing.T) {
	allocations := func(name string) float64 { return testing.AllocsPerRun(1000, denial(t, name)) }
	for _, ours := range []string{"httplimit", "httplimit-layers"} {
		for _, peer := range []string{"throttled", "httprate", "tollbooth"} {
			assert.Less(t, allocations(ours), allocations(peer), "%s and %s", ours, peer)
		}
	}
}
