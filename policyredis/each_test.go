package policyredis_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
	"github.com/weir-go/ratelimit/policyredis"
)

// TestEachListsTheLimitedKeysOfTheFleet: one process spends, and the page of another lists the key and resets it.
func TestEachListsTheLimitedKeysOfTheFleet(t *testing.T) {
	const rules = `rules:
- {name: Pairs, key: [user, region], limit: fixed-window 2/h, overrides: [{key: [big, eu], limit: fixed-window 100/h}, {key: [small, eu], limit: fixed-window 1/h}]}`
	set, err := policy.Parse([]byte(rules))
	require.NoError(t, err)
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr, ReadTimeout: time.Minute})
	defer client.Close()
	var fleet []*policy.Policies
	for range 2 {
		p, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Timeout: time.Minute})})
		require.NoError(t, err)
		fleet = append(fleet, p)
	}
	spend := func(user string, n int) {
		for range n {
			_, err := fleet[0].Take(t.Context(), policy.Attributes{"user": user, "region": "eu"}, 1)
			require.NoError(t, err)
		}
	}
	spend("ann", 2)
	spend("bob", 1)
	spend("big", 3)
	spend("small", 1)
	got := map[string]ratelimit.Decision{}
	require.NoError(t, fleet[1].Each(t.Context(), "pairs", func(key []string, d ratelimit.Decision) bool {
		got[strings.Join(key, "/")] = d
		return true
	}))
	require.Len(t, got, 4)
	for key, left := range map[string]int{"ann/eu": 0, "bob/eu": 1, "big/eu": 97, "small/eu": 0} {
		assert.Equal(t, left, got[key].Remaining, key)
		assert.Equal(t, left > 0, got[key].Allowed, key)
	}
	visited := 0
	require.NoError(t, fleet[1].Each(t.Context(), "pairs", func([]string, ratelimit.Decision) bool { visited++; return false }))
	assert.Equal(t, 1, visited)

	page := admin.New(fleet[1], &admin.Options{Write: true, HashKey: []byte("k")})
	post := func(fields url.Values) string {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(fields.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		return w.Body.String()
	}
	code := codeIn(t, post(url.Values{"do": {"limited"}, "rule": {"Pairs"}}), "fixed-window 2/h")
	post(url.Values{"do": {"reset"}, "rule": {"Pairs"}, "code": {code}})
	assert.True(t, fleet[0].Allow(policy.Attributes{"user": "ann", "region": "eu"}, 2), "the key has its budget again in all processes")

	require.NoError(t, client.Close())
	err = fleet[1].Each(t.Context(), "pairs", func([]string, ratelimit.Decision) bool { return true })
	assert.True(t, errors.Is(err, ratelimit.ErrUnavailable), err)
}

// codeIn returns the code of the key that a page lists with a limit.
func codeIn(t *testing.T, page, limit string) string {
	t.Helper()
	_, list, found := strings.Cut(page, `<h2 id="limited">`)
	require.True(t, found)
	list, _, _ = strings.Cut(list, `<h2 id="key">`)
	for _, row := range strings.Split(list, "<tr>") {
		if strings.Contains(row, limit) {
			_, code, _ := strings.Cut(row, `name="code" value="`)
			code, _, _ = strings.Cut(code, `"`)
			return code
		}
	}
	t.Fatal("no such row: " + list)
	return ""
}
