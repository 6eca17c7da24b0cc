package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/redistest"
)

// each runs a test on the embedded server, and on a redis-server if there is one.
func each(t *testing.T, test func(t *testing.T, f *fleet, page *httptest.Server)) {
	for name, embedded := range map[string]bool{"redis-server": false, "embedded": true} {
		t.Run(name, func(t *testing.T) {
			if !embedded {
				redistest.Program(t)
			}
			f, err := newFleet(embedded)
			require.NoError(t, err)
			defer f.close()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			page := httptest.NewServer(f.handler(ctx))
			defer page.Close()
			test(t, f, page)
		})
	}
}

func get(t *testing.T, page *httptest.Server, client string) *http.Response {
	r, err := http.NewRequest(http.MethodGet, page.URL+"/api/hello", nil)
	require.NoError(t, err)
	r.Header.Set("X-Client", client)
	resp, err := page.Client().Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp
}

func post(t *testing.T, page *httptest.Server, path string, form url.Values) int {
	resp, err := page.Client().PostForm(page.URL+path, form)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

func TestTheServersShareOneLimitAndGoOnAloneWithoutRedis(t *testing.T) {
	each(t, func(t *testing.T, f *fleet, page *httptest.Server) {
		allowed, alone := 0, 0 // a server decides alone while Redis is too slow, for example on a busy machine
		began := time.Now()
		for range 3 * limit.Burst {
			switch resp := get(t, page, "a"); {
			case resp.StatusCode == http.StatusOK && resp.Header.Get("X-RateLimit-Degraded") == "true":
				alone++
			case resp.StatusCode == http.StatusOK:
				allowed++
			default:
				require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
			}
		}
		most := limit.Burst + limit.Rate.Units*int(1+time.Since(began)/time.Second) + nodes*10
		require.LessOrEqual(t, allowed, most, "all of them together")
		require.GreaterOrEqual(t, allowed+alone, limit.Burst/2)

		require.Equal(t, http.StatusOK, post(t, page, "/redis", url.Values{"down": {"true"}}))
		degraded := 0
		for range 30 {
			resp := get(t, page, "b")
			require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, resp.StatusCode, "no request fails")
			if resp.Header.Get("X-RateLimit-Degraded") == "true" {
				degraded++
			}
		}
		require.Positive(t, degraded)

		require.Equal(t, http.StatusOK, post(t, page, "/redis", url.Values{"down": {"false"}}))
		recovered := func() bool {
			for range nodes {
				get(t, page, "c")
			}
			for _, n := range f.nodes {
				if n.counts().Breaker != "closed" {
					return false
				}
			}
			return true
		}
		for end := time.Now().Add(30 * time.Second); !recovered(); time.Sleep(20 * time.Millisecond) {
			require.True(t, time.Now().Before(end), "the breakers do not close")
		}
		resp, err := page.Client().Get(page.URL + "/status")
		require.NoError(t, err)
		defer resp.Body.Close()
		var s status
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&s))
		require.False(t, s.Down)
		require.Len(t, s.Nodes, nodes)
		for _, n := range s.Nodes {
			require.Zero(t, n.Failed)
			require.Positive(t, n.Shared+n.Degraded)
		}
	})
}

func TestTheLoadIsBounded(t *testing.T) {
	each(t, func(t *testing.T, f *fleet, page *httptest.Server) {
		for _, form := range []url.Values{nil, {"rate": {"0"}, "seconds": {"1"}}, {"rate": {"10"}, "seconds": {"61"}}, {"rate": {"x"}, "seconds": {"1"}}} {
			require.Equal(t, http.StatusBadRequest, post(t, page, "/load", form))
		}
		load := url.Values{"rate": {"50"}, "seconds": {"20"}} // the load ends with the test
		require.Equal(t, http.StatusOK, post(t, page, "/load", load))
		require.Equal(t, http.StatusConflict, post(t, page, "/load", load), "one at a time")
		require.Equal(t, 50, f.status().Load.Rate, "and the page can tell")
		require.Equal(t, http.StatusBadRequest, post(t, page, "/redis", nil))
		for end := time.Now().Add(30 * time.Second); f.status().Nodes[0].Allowed == 0; time.Sleep(10 * time.Millisecond) {
			require.True(t, time.Now().Before(end))
		}
	})
}

func TestRunServesUntilItIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	var addr string
	start := func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr = l.Addr().String()
		require.NoError(t, l.Close())
		go func() { done <- run(ctx, addr, true) }()
	}
	start()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		select {
		case err := <-done: // another process has taken the port first
			require.ErrorContains(t, err, addr)
			start()
		default:
		}
		resp, err := http.Get("http://" + addr)
		if err == nil {
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusOK, resp.StatusCode)
			break
		}
		require.True(t, time.Now().Before(end), "%v", err)
	}
	cancel()
	require.NoError(t, <-done)
}

func TestThePageShowsWhatAllServersAdmitBesideTheLimitAndTheBound(t *testing.T) {
	each(t, func(t *testing.T, f *fleet, page *httptest.Server) {
		idle := f.status()
		require.Equal(t, float64(clients*limit.Rate.Units), idle.Fleet.Limit)
		require.Equal(t, float64(clients*(limit.Burst+limit.Rate.Units+nodes*maxBatch)), idle.Fleet.Bound)
		require.Zero(t, idle.Load)
		require.Equal(t, http.StatusOK, post(t, page, "/load", url.Values{"rate": {"400"}, "seconds": {"2"}}))
		most := 0.0
		for end := time.Now().Add(30 * time.Second); f.status().Load.Rate > 0; time.Sleep(20 * time.Millisecond) {
			require.True(t, time.Now().Before(end))
			s := f.status()
			require.LessOrEqual(t, s.Fleet.Admitted, s.Fleet.Bound)
			most = max(most, s.Fleet.Admitted)
		}
		require.Positive(t, most)
		require.Equal(t, http.StatusOK, post(t, page, "/redis", url.Values{"down": {"true"}}))
		require.Eventually(t, func() bool { return f.status().Fleet.Bound > idle.Fleet.Bound }, 30*time.Second, 20*time.Millisecond, "a server alone may admit its share")
	})
}
