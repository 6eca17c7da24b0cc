package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

const perMinute = 60_000

// model counts as a provider does: a request's maximum cost when it arrives,
// and its real cost with its answer. It refuses requests above its limit.
type model struct {
	budget  *ratelimit.Single
	refused atomic.Int64
	charged atomic.Int64 // counted when requests arrived
	used    atomic.Int64
}

func (m *model) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(rand.Int64N(50e6))) // the time in the network
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var question struct {
		MaxTokens int `json:"max_tokens"`
	}
	if err := json.Unmarshal(body, &question); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	prompt := len(body) * (200 + rand.IntN(200)) / 1200 // with 3 to 6 characters a token, the gateway's estimate is sometimes too low
	reserved, err := m.budget.Reserve(r.Context(), prompt+question.MaxTokens, 0)
	if err != nil {
		return nil, err
	}
	if !reserved.Allowed {
		m.refused.Add(1)
		w.WriteHeader(http.StatusTooManyRequests)
		return w.Result(), nil
	}
	m.charged.Add(int64(prompt + question.MaxTokens))
	time.Sleep(time.Duration(2e8 + rand.Int64N(3e9))) // how long the answer takes
	tokens := prompt + 1 + rand.IntN(question.MaxTokens*2/3)
	_ = reserved.Settle(tokens)
	m.used.Add(int64(tokens))
	time.Sleep(time.Duration(rand.Int64N(50e6)))
	fmt.Fprintf(w, `{"usage":{"total_tokens":%d}}`, tokens)
	return w.Result(), nil
}

func request(g http.Handler, key string, words, maxTokens int) (status, tokens int) {
	body := fmt.Sprintf(`{"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, maxTokens, strings.Repeat("word ", words))
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+key)
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	var answer struct {
		Usage struct {
			TotalTokens int `json:"total_tokens"`
		} `json:"usage"`
	}
	_ = json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&answer)
	return w.Code, answer.Usage.TotalTokens
}

// Two tenants send as many requests as they can, and one sends few. Estimates are about twice the real cost. The
// model must refuse no request, at least 95 % of its tokens must be used, and the tenants must share them by weight.
func TestModelIsUsedInFullAndTenantsShareByWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{budget: ratelimit.Must(ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerMinute(perMinute), perMinute), nil))}
		g, err := newGateway("http://model.example", "key", perMinute, m)
		require.NoError(t, err)
		var used [2]atomic.Int64
		var counts, over atomic.Bool
		var all sync.WaitGroup
		for i, key := range []string{"gold-key", "silver-key"} {
			for range 30 {
				all.Go(func() {
					for !over.Load() {
						_, tokens := request(g, key, 20+rand.IntN(200), 100+rand.IntN(900))
						if counts.Load() {
							used[i].Add(int64(tokens))
						}
						time.Sleep(time.Duration(rand.Int64N(1e8)))
					}
				})
			}
		}
		var modest, served int
		all.Go(func() {
			for !over.Load() {
				time.Sleep(time.Duration(rand.ExpFloat64() * 5e9))
				modest++
				if status, _ := request(g, "bronze-key", 20, 500); status == http.StatusOK {
					served++
				}
			}
		})
		time.Sleep(2 * time.Minute) // until the burst is spent
		counts.Store(true)
		before, usedBefore := m.charged.Load(), m.used.Load()
		time.Sleep(10 * time.Minute)
		charged, inAll := m.charged.Load()-before, m.used.Load()-usedBefore
		counts.Store(false)
		page := httptest.NewRecorder()
		g.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/usage", nil))
		over.Store(true)
		all.Wait()
		t.Logf("gold used %d, silver %d, all %d; estimates %d; %d of %d modest ones served",
			used[0].Load(), used[1].Load(), inAll, charged, served, modest)
		require.Zero(t, m.refused.Load())
		require.Greater(t, inAll, int64(10*perMinute*95/100))
		var shown, limit, percent int
		_, err = fmt.Sscanf(page.Body.String(), "%d of %d tokens in the last minute (%d %%)", &shown, &limit, &percent)
		require.NoError(t, err, page.Body)
		require.Equal(t, []int{perMinute, shown * 100 / perMinute}, []int{limit, percent})
		require.InDelta(t, perMinute, shown, perMinute/10, "the minute's tokens are those of the limit")
		require.Greater(t, charged, 19*inAll/10, "the estimates are far too high")
		require.InDelta(t, 3, float64(used[0].Load())/float64(used[1].Load()), 0.3)
		require.GreaterOrEqual(t, served, modest*97/100)
	})
}

func TestWhatCannotPassIsRefusedAtOnce(t *testing.T) {
	m := &model{budget: ratelimit.Must(ratelimit.NewSingle(ratelimit.Unlimited(), nil))}
	g, err := newGateway("http://model.example", "key", perMinute, m)
	require.NoError(t, err)
	for _, c := range []struct {
		key       string
		maxTokens int
		want      int
	}{
		{"no-key", 1, http.StatusUnauthorized}, {"gold-key", 0, http.StatusBadRequest}, {"gold-key", -1, http.StatusBadRequest},
		{"gold-key", perMinute, http.StatusBadRequest},
	} {
		status, _ := request(g, c.key, 1, c.maxTokens)
		require.Equal(t, c.want, status, "%+v", c)
	}
	require.Zero(t, m.used.Load())
}

// The model reads max_tokens only, so the gateway reserves for that value.
func TestOnlyTheNameThatTheModelReadsCounts(t *testing.T) {
	g, err := newGateway("http://model.example", "key", perMinute, &model{budget: ratelimit.Must(ratelimit.NewSingle(ratelimit.Unlimited(), nil))})
	require.NoError(t, err)
	for _, body := range []string{`{"max_tokens":2000000000,"MAX_TOKENS":1}`, `{"MAX_TOKENS":1}`, `{"max_tokens":0}`, `{`, ``, `[]`, `{"max_tokens":"1"}`} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer gold-key")
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		require.Equal(t, http.StatusBadRequest, w.Code, body)
	}
}

// answers is a model with the same answer to each request.
type answers string

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	_, _ = io.WriteString(w, string(a))
	return w.Result(), nil
}

// The gateway settles at the upstream's figure only if the request may have cost so much.
func TestFigureThatCannotBeTrueIsNotSettled(t *testing.T) {
	for answer, charged := range map[string]int{
		`{"usage":{"total_tokens":200}}`:      200,
		`{"usage":{"total_tokens":1}}`:        1,
		`{"usage":{"total_tokens":10000000}}`: -1,
		`{"usage":{"total_tokens":-5}}`:       -1,
		`{"usage":{"total_tokens":0}}`:        -1,
		`{"usage":{"total_tokens":1e300}}`:    -1,
		`{"usage":{"total_tokens":"many"}}`:   -1,
		`{}`:                                  -1,
		`<html>`:                              -1,
	} {
		synctest.Test(t, func(t *testing.T) {
			g, err := newGateway("http://model.example", "key", perMinute, answers(answer))
			require.NoError(t, err)
			status, _ := request(g, "gold-key", 20, 500)
			require.Equal(t, http.StatusOK, status)
			d, err := g.limiter.Peek(context.Background(), tenants["Bearer gold-key"], 0)
			require.NoError(t, err)
			spent := int((d.ResetAfter + time.Millisecond - 1) / time.Millisecond) // a token is regained in a millisecond
			if charged < 0 {
				charged = 500 + len(strings.Repeat("word ", 20))/4 // the estimate, with some tokens for the frame
				require.InDelta(t, charged, spent, 30, answer)
			} else {
				require.Equal(t, charged, spent, answer)
			}
		})
	}
}

func TestUsageIsThatOfTheLastMinute(t *testing.T) {
	var u usage
	begin := time.Unix(1_000_000, 0)
	require.EqualValues(t, 5, u.add(begin, 5))
	require.EqualValues(t, 12, u.add(begin.Add(59*time.Second), 7))
	require.EqualValues(t, 7, u.add(begin.Add(60*time.Second), 0), "the first second is over")
	require.EqualValues(t, 10, u.add(begin.Add(-time.Hour), 3), "a clock that is set back counts in the latest second")
	require.EqualValues(t, 3, u.add(begin.Add(119*time.Second), 0))
	require.EqualValues(t, 0, u.add(begin.Add(120*time.Second), 0))
	require.EqualValues(t, 0, u.add(begin.Add(time.Hour), 0))
}

// slow is a model. It answers when the test lets it, or when the client leaves.
type slow struct{ answer chan struct{} }

func (m slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-m.answer:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	w := httptest.NewRecorder()
	fmt.Fprint(w, `{"usage":{"total_tokens":20}}`)
	return w.Result(), nil
}

func TestUsersAndTenantsHaveCapsOnRequestsAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := slow{make(chan struct{})}
		g, err := newGateway("http://model.example", "key", 1_000_000, m)
		require.NoError(t, err)
		var status [2]map[int]int // how often each status was sent to clients that stay, and to those leaving
		var mu sync.Mutex
		var all sync.WaitGroup
		send := func(ctx context.Context, kind int, user string) {
			all.Go(func() {
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(`{"max_tokens":100}`))
				r.Header.Set("Authorization", "Bearer gold-key")
				r.Header.Set("User", user)
				w := httptest.NewRecorder()
				g.ServeHTTP(w, r)
				mu.Lock()
				defer mu.Unlock()
				status[kind][w.Code]++
			})
		}
		round := func(kind int, ctx context.Context) {
			status[kind] = map[int]int{}
			for range 20 { // a runaway script's requests
				send(ctx, kind, "ann")
			}
			synctest.Wait()
			for i := range 100 {
				send(ctx, kind, fmt.Sprint("user ", i%50))
			}
			synctest.Wait()
		}
		ctx, leave := context.WithCancel(t.Context())
		round(1, ctx)
		require.Equal(t, map[int]int{http.StatusTooManyRequests: 12 + 8}, status[1], "8 of the user, and 100 of the tenant, go on")
		leave()
		all.Wait()
		require.Equal(t, ofTenant, status[1][http.StatusBadGateway])

		round(0, t.Context())
		close(m.answer)
		all.Wait()
		require.Equal(t, map[int]int{http.StatusOK: ofTenant, http.StatusTooManyRequests: 12 + 8}, status[0], "clients that left hold nothing")
	})
}
