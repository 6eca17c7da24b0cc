package migrate

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// ululeStore returns a store without a goroutine for removing old keys.
func ululeStore() ulule.Store {
	return memory.NewStoreWithOptions(ulule.StoreOptions{Prefix: ulule.DefaultPrefix})
}

func TestUluleCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		period, err := ulule.NewRateFromFormatted("5-M")
		require.NoError(t, err)
		theirs := ulule.New(ululeStore(), period)
		limit, err := ratelimit.ParseLimit("fixed-window 5/m")
		require.NoError(t, err)
		ours, err := ratelimit.New[string](limit, nil)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.FixedWindow(ratelimit.PerMinute(5)), limit)
		assert.Equal(t, ulule.Rate{Formatted: "5-M", Limit: 5, Period: time.Minute}, period)

		for _, wait := range []time.Duration{0, time.Second, 58 * time.Second, 0, 2 * time.Second, time.Hour} {
			time.Sleep(wait)
			for range 2 {
				c, err := theirs.Get(ctx, "ann")
				require.NoError(t, err)
				d, err := ours.Take(ctx, "ann", 1)
				require.NoError(t, err)
				assert.Equal(t, !c.Reached, d.Allowed)
				assert.Equal(t, int(c.Remaining), d.Remaining)
				assert.Equal(t, c.Reset, time.Now().Add(d.ResetAfter).Unix())
			}
			c, err := theirs.Peek(ctx, "ann")
			require.NoError(t, err)
			d, err := ours.Peek(ctx, "ann", 1)
			require.NoError(t, err)
			assert.Equal(t, int(c.Remaining), d.Remaining)
		}
		c, err := theirs.Increment(ctx, "bob", 3)
		require.NoError(t, err)
		d, err := ours.Take(ctx, "bob", 3)
		require.NoError(t, err)
		assert.Equal(t, int(c.Remaining), d.Remaining)
		_, err = theirs.Reset(ctx, "bob")
		require.NoError(t, err)
		ours.Reset(ctx, "bob")
		c, err = theirs.Get(ctx, "bob")
		require.NoError(t, err)
		d, err = ours.Take(ctx, "bob", 1)
		require.NoError(t, err)
		assert.Equal(t, int(c.Remaining), d.Remaining)
	})
}

func statuses(h http.Handler, n int, r *http.Request) (codes []int) {
	for range n {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.Clone(r.Context()))
		codes = append(codes, w.Code)
	}
	return codes
}

func from(addr string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = addr
	return r
}

var handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func TestUluleMiddleware(t *testing.T) {
	theirs := stdlib.NewMiddleware(ulule.New(ululeStore(), ulule.Rate{Limit: 3, Period: time.Hour})).Handler(handler)
	limit, err := httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(3)), nil)
	require.NoError(t, err)
	ours := limit.Wrap(handler)
	for _, addr := range []string{"192.0.2.1:1000", "192.0.2.2:1000"} {
		want := statuses(theirs, 5, from(addr))
		assert.Equal(t, []int{200, 200, 200, 429, 429}, want)
		assert.Equal(t, want, statuses(ours, 5, from(addr)))
	}

	// ulule/limiter sends X-RateLimit-*, with the reset in Unix seconds, and no Retry-After.
	limit, err = httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(1)), &httplimit.Options{Dialect: httplimit.DialectXEpoch})
	require.NoError(t, err)
	theirs = stdlib.NewMiddleware(ulule.New(ululeStore(), ulule.Rate{Limit: 1, Period: time.Hour})).Handler(handler)
	var fields [2]http.Header
	for i, h := range []http.Handler{theirs, limit.Wrap(handler)} {
		statuses(h, 1, from("192.0.2.1:1000"))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, from("192.0.2.1:1000"))
		assert.Equal(t, http.StatusTooManyRequests, w.Code)
		fields[i] = w.Header()
	}
	assert.Equal(t, fields[0].Get("X-RateLimit-Limit"), fields[1].Get("X-RateLimit-Limit"))
	assert.Equal(t, fields[0].Get("X-RateLimit-Remaining"), fields[1].Get("X-RateLimit-Remaining"))
	assert.Empty(t, fields[0].Get("Retry-After"))
	assert.Equal(t, "3600", fields[1].Get("Retry-After"))
}

// TestUluleChargesDenials: a cost that does not fit is charged nevertheless.
func TestUluleChargesDenials(t *testing.T) {
	ctx := t.Context()
	theirs := ulule.New(ululeStore(), ulule.Rate{Limit: 5, Period: time.Hour})
	ours := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(5)), nil))
	for _, cost := range []int64{3, 4} {
		_, err := theirs.Increment(ctx, "ann", cost)
		require.NoError(t, err)
		ours.Allow("ann", int(cost))
	}
	c, err := theirs.Get(ctx, "ann")
	require.NoError(t, err)
	assert.True(t, c.Reached)
	assert.True(t, ours.Allow("ann", 2))
}

// behindProxies returns both sides of a limit of one request an hour per client, behind proxies in 10.0.0.0/8.
func behindProxies(t *testing.T) (theirs, ours http.Handler) {
	theirs = stdlib.NewMiddleware(ulule.New(ululeStore(), ulule.Rate{Limit: 1, Period: time.Hour}, ulule.WithTrustForwardHeader(true))).Handler(handler)
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	clientIP, err := httplimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: proxies})
	require.NoError(t, err)
	perHour := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	limit, err := httplimit.New(ratelimit.Map(perHour, clientIP), quiet)
	require.NoError(t, err)
	return theirs, limit.Wrap(handler)
}

func forwarded(peer, field string) *http.Request {
	r := from(peer)
	if field != "" {
		r.Header.Set("X-Forwarded-For", field)
	}
	return r
}

// TestUluleBehindProxies sends requests with and without the field, from proxies and from elsewhere.
func TestUluleBehindProxies(t *testing.T) {
	theirs, ours := behindProxies(t)
	for _, r := range []*http.Request{
		forwarded("10.0.0.1:1000", "192.0.2.1"), forwarded("10.0.0.2:1000", "192.0.2.1"), forwarded("10.0.0.1:1000", "192.0.2.2"),
		forwarded("192.0.2.3:1000", ""), forwarded("192.0.2.3:2000", ""), forwarded("192.0.2.4:1000", ""),
	} {
		assert.Equal(t, statuses(theirs, 1, r), statuses(ours, 1, r), "%v from %s", r.Header, r.RemoteAddr)
	}
}

// TestUluleBelievesWhatClientsWrite: it uses the first address in the field, even if the client has written it.
func TestUluleBelievesWhatClientsWrite(t *testing.T) {
	for name, row := range map[string]struct {
		requests     []*http.Request
		theirs, ours []int
	}{
		"before the proxy's own entry": {[]*http.Request{forwarded("10.0.0.1:1", "203.0.113.7, 192.0.2.1"), forwarded("10.0.0.1:1", "203.0.113.8, 192.0.2.1")}, []int{200, 200}, []int{200, 429}},
		"without a proxy":              {[]*http.Request{forwarded("192.0.2.1:1", "203.0.113.7"), forwarded("192.0.2.1:1", "203.0.113.8")}, []int{200, 200}, []int{200, 429}},
		"a proxy that writes none":     {[]*http.Request{forwarded("10.0.0.1:1", ""), forwarded("10.0.0.1:1", "")}, []int{200, 429}, []int{400, 400}},
	} {
		theirs, ours := behindProxies(t)
		for i, r := range row.requests {
			assert.Equal(t, row.theirs[i:i+1], statuses(theirs, 1, r), name)
			assert.Equal(t, row.ours[i:i+1], statuses(ours, 1, r), name)
		}
	}
	hop, err := httplimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: 1})
	require.NoError(t, err)
	_, err = hop(from("192.0.2.1:1"))
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
}

type brokenStore struct{ ulule.Store }

func (brokenStore) Get(_ context.Context, _ string, _ ulule.Rate) (ulule.Context, error) {
	return ulule.Context{}, errors.New("down")
}

// TestUluleIPv6: each address of a subscriber's network has its own budget.
func TestUluleIPv6(t *testing.T) {
	theirs := stdlib.NewMiddleware(ulule.New(ululeStore(), ulule.Rate{Limit: 1, Period: time.Hour})).Handler(handler)
	limit, err := httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(1)), nil)
	require.NoError(t, err)
	ours := limit.Wrap(handler)
	a, b := from("[2001:db8::1]:1"), from("[2001:db8::2]:1")
	assert.Equal(t, []int{200, 200}, append(statuses(theirs, 1, a), statuses(theirs, 1, b)...))
	assert.Equal(t, []int{200, 429}, append(statuses(ours, 1, a), statuses(ours, 1, b)...))
}

// TestUlulePanicsWhenItsStoreIsDown, unless OnError is set.
func TestUlulePanicsWhenItsStoreIsDown(t *testing.T) {
	theirs := stdlib.NewMiddleware(ulule.New(brokenStore{}, ulule.Rate{Limit: 1, Period: time.Hour})).Handler(handler)
	assert.Panics(t, func() { statuses(theirs, 1, from("192.0.2.1:1")) })
}
