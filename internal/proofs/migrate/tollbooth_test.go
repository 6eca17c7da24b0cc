package migrate

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/didip/tollbooth/v8"
	"github.com/didip/tollbooth/v8/limiter"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

func TestTollboothMiddleware(t *testing.T) {
	for name, make := range map[string]func() (theirs, ours http.Handler){
		"by address": func() (theirs, ours http.Handler) {
			lmt := tollbooth.NewLimiter(2, nil).SetIPLookup(limiter.IPLookup{Name: "RemoteAddr"}).SetIgnoreURL(true)
			theirs = tollbooth.LimitHandler(lmt, handler)
			limit := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(2), 2), nil))
			return theirs, limit.Wrap(handler)
		},
		"a burst": func() (theirs, ours http.Handler) {
			lmt := tollbooth.NewLimiter(2, nil).SetBurst(5).SetIPLookup(limiter.IPLookup{Name: "RemoteAddr"})
			theirs = tollbooth.LimitHandler(lmt, handler)
			limit := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(2), 5), nil))
			return theirs, limit.Wrap(handler)
		},
		"less than one a second": func() (theirs, ours http.Handler) {
			lmt := tollbooth.NewLimiter(0.25, nil).SetIPLookup(limiter.IPLookup{Name: "RemoteAddr"})
			theirs = tollbooth.LimitHandler(lmt, handler)
			limit := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.Per(1, 4*time.Second), 1), nil))
			return theirs, limit.Wrap(handler)
		},
		"behind a proxy": func() (theirs, ours http.Handler) {
			lmt := tollbooth.NewLimiter(2, nil).SetIPLookup(limiter.IPLookup{Name: "X-Forwarded-For", IndexFromRight: 0})
			theirs = tollbooth.LimitHandler(lmt, handler)
			clientIP, err := httplimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: 1})
			require.NoError(t, err)
			limit := ratelimit.Must(httplimit.New(ratelimit.Map(twoASecond(clientIP)), nil))
			return theirs, limit.Wrap(handler)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			theirs, ours := make()
			for _, wait := range []time.Duration{0, 500 * time.Millisecond, time.Second, 4 * time.Second} {
				time.Sleep(wait)
				for _, addr := range []string{"192.0.2.1:1", "192.0.2.2:1"} {
					r := from(addr)
					r.Header.Set("X-Forwarded-For", "203.0.113.7, "+addr[:9])
					assert.Equal(t, statuses(theirs, 6, r), statuses(ours, 6, r), name)
				}
			}
		})
	}
}

func twoASecond[K comparable](key func(*http.Request) (K, error)) (ratelimit.Reserver[K], func(*http.Request) (K, error)) {
	return ratelimit.Must(ratelimit.New[K](ratelimit.TokenBucket(ratelimit.PerSecond(2), 2), nil)), key
}

// Limits by key also work outside of HTTP.
func TestTollboothKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lmt := tollbooth.NewLimiter(2, nil)
		ours := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(2), 2), nil))
		for range 20 {
			for range 3 {
				assert.Equal(t, !lmt.LimitReached("ann"), ours.Allow("ann", 1))
			}
			time.Sleep(500 * time.Millisecond)
		}
		httpErr := tollbooth.LimitByKeys(lmt, []string{"bob", "/path"})
		pairs := ratelimit.Must(ratelimit.New[[2]string](ratelimit.TokenBucket(ratelimit.PerSecond(2), 2), nil))
		assert.Equal(t, httpErr == nil, pairs.Allow([2]string{"bob", "/path"}, 1))
	})
}

// TestTollboothMethods limits only some methods.
func TestTollboothMethods(t *testing.T) {
	lmt := tollbooth.NewLimiter(1, nil).SetIPLookup(limiter.IPLookup{Name: "RemoteAddr"}).SetMethods([]string{"POST"})
	theirs := tollbooth.LimitHandler(lmt, handler)
	limit := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &httplimit.Options{
		Skip: func(r *http.Request) bool { return r.Method != "POST" },
	}))
	ours := limit.Wrap(handler)
	for _, method := range []string{"GET", "POST"} {
		r := from("192.0.2.1:1")
		r.Method = method
		assert.Equal(t, statuses(theirs, 2, r), statuses(ours, 2, r), method)
	}
}

// TestTollboothWithoutAnAddressSource: without one, tollbooth limits nothing and reports no error.
func TestTollboothWithoutAnAddressSource(t *testing.T) {
	theirs := tollbooth.LimitHandler(tollbooth.NewLimiter(1, nil), handler)
	assert.Equal(t, []int{200, 200, 200}, statuses(theirs, 3, from("192.0.2.1:1")))

	clientIP, err := httplimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: 1})
	require.NoError(t, err)
	ours := ratelimit.Must(httplimit.New(ratelimit.Map(twoASecond(clientIP)), quiet)).Wrap(handler)
	assert.Equal(t, []int{400}, statuses(ours, 1, from("192.0.2.1:1")), "no address in the field that should have one")
}

// TestTollboothTakesMappedAddressesForOne: tollbooth clears the last eight bytes of ::ffff:a.b.c.d.
func TestTollboothTakesMappedAddressesForOne(t *testing.T) {
	lmt := tollbooth.NewLimiter(1, nil).SetIPLookup(limiter.IPLookup{Name: "RemoteAddr"})
	theirs := tollbooth.LimitHandler(lmt, handler)
	ours := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), nil)).Wrap(handler)
	a, b := from("[::ffff:192.0.2.1]:1"), from("[::ffff:198.51.100.7]:1")
	assert.Equal(t, []int{200, 429}, append(statuses(theirs, 1, a), statuses(theirs, 1, b)...))
	assert.Equal(t, []int{200, 200}, append(statuses(ours, 1, a), statuses(ours, 1, b)...))
}

// TestTollboothCountsEachPath: a client gets a budget for each path it invents.
func TestTollboothCountsEachPath(t *testing.T) {
	lmt := tollbooth.NewLimiter(1, nil).SetIPLookup(limiter.IPLookup{Name: "RemoteAddr"})
	theirs := tollbooth.LimitHandler(lmt, handler)
	ours := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), nil)).Wrap(handler)
	a, b := from("192.0.2.1:1"), from("192.0.2.1:1")
	b.URL.Path = "/x"
	assert.Equal(t, []int{200, 200}, append(statuses(theirs, 1, a), statuses(theirs, 1, b)...))
	assert.Equal(t, []int{200, 429}, append(statuses(ours, 1, a), statuses(ours, 1, b)...))
}

// TestTollboothFields sends the same requests to both sides.
func TestTollboothFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lmt := tollbooth.NewLimiter(2, nil).SetBurst(5).SetIPLookup(limiter.IPLookup{Name: "RemoteAddr"})
		theirs := tollbooth.LimitHandler(lmt, handler)
		limit := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(2), 5), &httplimit.Options{Dialect: httplimit.DialectDraft06}))
		ours := limit.Wrap(handler)
		for i := range 7 {
			fields := func(h http.Handler) http.Header {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, from("192.0.2.1:1"))
				return w.Header()
			}
			a, b := fields(theirs), fields(ours)
			assert.Equal(t, "2", a.Get("RateLimit-Limit"), "the rate")
			assert.Equal(t, "5", b.Get("RateLimit-Limit"), "the burst")
			assert.Equal(t, a.Get("RateLimit-Remaining"), b.Get("RateLimit-Remaining"))
			assert.Equal(t, strconv.Itoa(max(0, 4-i)), b.Get("RateLimit-Remaining"))
			assert.Equal(t, "1", a.Get("RateLimit-Reset"), "whatever the time is")
			assert.Equal(t, "2.00", a.Get("X-Rate-Limit-Limit"))
			assert.Empty(t, b.Get("X-Rate-Limit-Limit"))
			assert.Empty(t, a.Get("Retry-After"))
			if i >= 5 {
				assert.Equal(t, "1", b.Get("Retry-After"))
			} else {
				whole := (i + 2) / 2
				if i == 4 { // if nothing remains, the time until the next unit
					whole = 1
				}
				assert.Equal(t, strconv.Itoa(whole), b.Get("RateLimit-Reset"), "until the burst is whole")
			}
		}
	})
}
