package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func server(t *testing.T) *httptest.Server {
	h, err := newServer(nil)
	require.NoError(t, err)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func status(t *testing.T, resp *http.Response, err error) int {
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

func TestOnlyFailedLoginsCount(t *testing.T) {
	s := server(t)
	login := func(password string) int {
		resp, err := s.Client().PostForm(s.URL+"/login", url.Values{"name": {"alice"}, "password": {password}})
		return status(t, resp, err)
	}
	for _, row := range []struct {
		password string
		want     int
	}{{"weir", 200}, {"weir", 200}, {"a", 401}, {"b", 401}, {"weir", 200}, {"c", 401}, {"weir", 429}} {
		assert.Equal(t, row.want, login(row.password))
	}
	resp, err := s.Client().PostForm(s.URL+"/login", nil)
	assert.Equal(t, http.StatusBadRequest, status(t, resp, err))
}

func TestKeysHaveTheirPlans(t *testing.T) {
	for key, want := range map[string]string{
		"":         `"ip";q=10;w=2;weir-refill, "global";q=500;w=1;weir-refill`,
		"some-key": `"ip";q=10;w=2;weir-refill, "key";q=5;w=60, "global";q=500;w=1;weir-refill`,
		"gold-key": `"ip";q=10;w=2;weir-refill, "key";q=8;w=60, "global";q=500;w=1;weir-refill`,
	} {
		s := server(t)
		r, err := http.NewRequest("GET", s.URL+"/api/items", nil)
		require.NoError(t, err)
		if key != "" {
			r.Header.Set("X-API-Key", key)
		}
		resp, err := s.Client().Do(r)
		assert.Equal(t, http.StatusOK, status(t, resp, err))
		assert.Equal(t, want, resp.Header.Get("RateLimit-Policy"))
	}
}

func TestHealthChecksAreLeftOut(t *testing.T) {
	s := server(t)
	for range 30 {
		resp, err := s.Client().Get(s.URL + "/healthz")
		require.Equal(t, http.StatusOK, status(t, resp, err))
		require.Empty(t, resp.Header.Get("RateLimit"))
	}
}

func TestBurstIsStreamed(t *testing.T) {
	w := httptest.NewRecorder()
	synctest.Test(t, func(t *testing.T) { // in real time, a bucket would regain units while the machine stops
		h, err := newServer(nil)
		require.NoError(t, err)
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/demo/burst?bursts=2&requests=6&gap=0", nil))
	})
	assert.True(t, w.Flushed)
	served, denied := map[string]int{}, map[string]int{}
	lines := bufio.NewScanner(w.Body)
	for lines.Scan() && lines.Text() != "event: done" {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var res result
		require.NoError(t, json.Unmarshal([]byte(data), &res))
		if res.Status == http.StatusOK {
			served[res.Algorithm]++
		} else {
			denied[res.Algorithm]++
			assert.NotEmpty(t, res.Header["Retry-After"])
		}
	}
	require.NoError(t, lines.Err())
	for _, name := range []string{"fixed-window", "sliding-log", "sliding-counter", "token-bucket", "leaky-bucket"} {
		assert.Equal(t, 10, served[name], name)
		assert.Equal(t, 2, denied[name], name)
	}
}

func TestPatternsThatAreTooMuchAreRefused(t *testing.T) {
	s := server(t)
	for _, query := range []string{"", "bursts=1&requests=51&gap=0", "bursts=11&requests=1&gap=0", "bursts=1&requests=1&gap=-1"} {
		resp, err := s.Client().Get(s.URL + "/demo/burst?" + query)
		assert.Equal(t, http.StatusBadRequest, status(t, resp, err), query)
	}
}

func TestPageIsServed(t *testing.T) {
	s := server(t)
	resp, err := s.Client().Get(s.URL)
	assert.Equal(t, http.StatusOK, status(t, resp, err))
	assert.Equal(t, "text/html; charset=utf-8", resp.Header.Get("Content-Type"))
}

func TestParsePrefixes(t *testing.T) {
	got, err := parsePrefixes(" 10.0.0.0/8, fd00::/8,")
	require.NoError(t, err)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}, got)
	_, err = parsePrefixes("10.0.0.0")
	assert.Error(t, err)
}
