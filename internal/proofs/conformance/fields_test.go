package conformance

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// answers describes its limits and returns preset decisions.
type answers struct {
	limits   []ratelimit.Limit
	decision ratelimit.Decision
}

func (a *answers) Describe() ratelimit.Description {
	return ratelimit.Description{Limits: a.limits, BooksAhead: true}
}
func (a *answers) Allow(_ *http.Request, _ int) bool { return a.decision.Allowed }
func (a *answers) Take(context.Context, *http.Request, int) (ratelimit.Decision, error) {
	return a.decision, nil
}

// item is one parsed member of a list.
type item struct {
	name   string
	params map[string]int64
}

// parse parses a field by RFC 9651. It must be a non-empty list of Strings with Integers as parameters.
func parse(t *testing.T, lines []string) (items []item) {
	t.Helper()
	list, err := httpsfv.UnmarshalList(lines)
	require.NoError(t, err, "%q", lines)
	require.NotEmpty(t, list)
	for _, member := range list {
		m, ok := member.(httpsfv.Item)
		require.True(t, ok, "%q has an inner list", lines)
		name, ok := m.Value.(string)
		require.True(t, ok, "%T is not a String", m.Value)
		it := item{name, map[string]int64{}}
		for _, p := range m.Params.Names() {
			v, _ := m.Params.Get(p)
			if p == "weir-refill" { // this library's own parameter
				require.Equal(t, true, v)
				continue
			}
			n, ok := v.(int64)
			require.True(t, ok, "%s is a %T", p, v)
			it.params[p] = n
		}
		items = append(items, it)
	}
	return items
}

// randomLimits returns limits of all algorithms. Their names have any characters
// allowed in a field, and some figures are the largest that can be counted.
func randomLimits(random *rand.Rand) (limits []ratelimit.Limit) {
	for i := range 1 + random.IntN(5) {
		units := 1 + int(math.Exp2(random.Float64()*53))
		r := ratelimit.Per(units, time.Duration(math.Exp2(random.Float64()*60)))
		l := [...]ratelimit.Limit{
			ratelimit.TokenBucket(r, 1+random.IntN(units)), ratelimit.LeakyBucket(r, 1+random.IntN(units)),
			ratelimit.FixedWindow(r), ratelimit.SlidingLog(r), ratelimit.SlidingCounter(r),
			ratelimit.Unlimited(), ratelimit.Blocked(),
		}[random.IntN(7)]
		name := strconv.Itoa(i)
		for range random.IntN(10) {
			name += string(rune(' ' + random.IntN('~'-' '+1)))
		}
		limits = append(limits, l.Named(name))
	}
	return limits
}

func TestFieldsAreStructuredFieldsWhateverTheLimits(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		limits := randomLimits(random)
		decided := limits[random.IntN(len(limits))]
		d := ratelimit.Decision{
			Limit: decided, Remaining: int(random.Uint64N(uint64(decided.Capacity()) + 1)), Allowed: random.IntN(2) == 0,
			ResetAfter: time.Duration(random.Int64()), RetryAfter: time.Duration(random.Int64()),
		}
		if d.Allowed {
			d.RetryAfter = 0
		}
		check(t, limits, d)
	}
}

func check(t *testing.T, limits []ratelimit.Limit, d ratelimit.Decision) {
	m, err := httplimit.New(&answers{limits, d}, nil)
	require.NoError(t, err)
	w := httptest.NewRecorder()
	m.Wrap(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if d.Limit.Algorithm == ratelimit.AlgorithmUnlimited {
		require.Empty(t, w.Header().Values("RateLimit"))
		return
	}
	checkPolicies(t, limits, parse(t, w.Header().Values("RateLimit-Policy")))
	standing := parse(t, w.Header().Values("RateLimit"))
	require.Len(t, standing, 1)
	checkStanding(t, d, standing[0])
	if !d.Allowed {
		checkDenial(t, d, standing[0], w.Result())
	}
}

func checkPolicies(t *testing.T, limits []ratelimit.Limit, policies []item) {
	for _, l := range limits {
		if l.Algorithm == ratelimit.AlgorithmUnlimited {
			continue
		}
		require.NotEmpty(t, policies)
		p := policies[0]
		policies = policies[1:]
		require.Equal(t, l.Name, p.name)
		require.Equal(t, min(int64(l.Capacity()), 999_999_999_999_999), p.params["q"])
		if w, ok := p.params["w"]; ok {
			require.Positive(t, w)
		}
	}
	require.Empty(t, policies)
}

func checkStanding(t *testing.T, d ratelimit.Decision, standing item) {
	require.Equal(t, d.Limit.Name, standing.name)
	require.Equal(t, min(int64(d.Remaining), 999_999_999_999_999), standing.params["r"])
	if w, ok := standing.params["t"]; ok {
		require.Positive(t, w)
	}
}

func checkDenial(t *testing.T, d ratelimit.Decision, standing item, resp *http.Response) {
	retry, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, retry, standing.params["t"], "not before the end of the effective window")
	require.GreaterOrEqual(t, retry, int64(d.RetryAfter/time.Second))
	var problem struct {
		Violated []string `json:"violated-policies"`
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&problem))
	require.Equal(t, []string{d.Limit.Name}, problem.Violated)
}

func TestListsOfNestedMiddlewareAreOneList(t *testing.T) {
	h := http.Handler(http.NotFoundHandler())
	for _, name := range []string{"login", "api"} {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named(name), nil))
		h = ratelimit.Must(httplimit.New(ratelimit.Map(l, func(*http.Request) (string, error) { return "k", nil }), nil)).Wrap(h)
	}
	s := httptest.NewServer(h)
	defer s.Close()
	resp, err := s.Client().Get(s.URL)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, []item{{"api", map[string]int64{"q": 5, "w": 60}}, {"login", map[string]int64{"q": 5, "w": 60}}},
		parse(t, resp.Header.Values("RateLimit-Policy")))
	assert.Equal(t, []item{{"api", map[string]int64{"r": 4, "t": 60}}, {"login", map[string]int64{"r": 4, "t": 60}}},
		parse(t, resp.Header.Values("RateLimit")))
}
