package metrics

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/promlimit"
)

type client struct {
	tenant string
	level  int // 1 for a page, 0 for a background job
}

func clientOf(r *http.Request) (client, error) {
	c := client{tenant: r.Header.Get("Tenant"), level: 1}
	if r.Header.Get("Background") != "" {
		c.level = 0
	}
	return c, nil
}

// protect is the recipe of docs/inflight.md.
func protect(backend http.Handler, weights map[string]int, metrics *promlimit.Metrics) (http.Handler, error) {
	limiter, err := inflight.New(200, &inflight.Options[client]{
		Total: 200, Shared: inflight.Learn(nil), MaxQueue: 50, MaxWaiting: 500,
		Weight:   func(c client) int { return weights[c.tenant] },
		Priority: func(c client) int { return c.level },
	})
	if err != nil {
		return nil, err
	}
	limit, err := httplimit.NewInflight(limiter, clientOf, &httplimit.InflightOptions{MaxWait: time.Second})
	if err = errors.Join(err, metrics.Register("backend", limiter)); err != nil {
		return nil, err
	}
	return limit.Wrap(backend), nil
}

// Ten servers get twice as many requests as they can serve. Two tenants request pages, and
// one of them has paid for a share three times as large. The rest are background jobs.
func TestRecipeOfOneAdaptiveLimitWithSharesAndPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		metrics, err := promlimit.New(reg)
		require.NoError(t, err)
		servers := make(chan struct{}, 10)
		worst, took, answered := time.Duration(0), time.Duration(0), 0
		lock := make(chan struct{}, 1)
		h, err := protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			start := time.Now()
			servers <- struct{}{}
			time.Sleep(50 * time.Millisecond)
			<-servers
			lock <- struct{}{}
			took, answered, worst = took+time.Since(start), answered+1, max(worst, time.Since(start))
			<-lock
		}), map[string]int{"paying": 3, "free": 1}, metrics)
		require.NoError(t, err)
		served, retry := map[string]int{}, ""
		send := func(name, tenant, background string) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Tenant", tenant)
			r.Header.Set("Background", background)
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
			defer cancel()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r.WithContext(ctx))
			lock <- struct{}{}
			defer func() { <-lock }()
			if w.Code == http.StatusOK {
				served[name]++
			} else {
				assert.Equal(t, http.StatusServiceUnavailable, w.Code)
				retry = w.Header().Get("Retry-After")
			}
		}
		for range 4000 { // 20 s with 600 requests a second; 200 of them can be served
			go send("paying", "paying", "")
			go send("free", "free", "")
			go send("job", "paying", "1")
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		lock <- struct{}{}
		assert.InEpsilon(t, 4000, served["paying"]+served["free"], 0.1)
		assert.InEpsilon(t, 3, float64(served["paying"])/float64(served["free"]), 0.2)
		assert.Less(t, served["job"], 200, "only until pages wait")
		assert.Less(t, took/time.Duration(answered), 125*time.Millisecond, "2.5 service times")
		assert.NotEmpty(t, retry)
		n, err := testutil.GatherAndCount(reg, "ratelimit_inflight_limit_units", "ratelimit_inflight_shed_total")
		require.NoError(t, err)
		assert.Equal(t, 2, n)
	})
}
