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
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

const perMinute = 60_000

// The gateways run as processes of the test's program. With -worker, the program runs the example.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-worker" {
		main()
		return
	}
	os.Exit(m.Run())
}

// model counts as a provider does: a request's maximum cost when it arrives,
// and its real cost with its answer. It refuses requests above its limit.
type model struct {
	budget  *ratelimit.Single
	slow    bool
	refused atomic.Int64
	used    atomic.Int64
}

func newModel(slow bool) *model {
	return &model{budget: ratelimit.Must(ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerMinute(perMinute), perMinute), nil)), slow: slow}
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var question struct {
		MaxTokens int `json:"max_tokens"`
	}
	if err != nil || json.Unmarshal(body, &question) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	prompt := len(body) * (200 + rand.IntN(200)) / 1200 // with 3 to 6 characters a token, the gateway's estimate is sometimes too low
	reserved, err := m.budget.Reserve(r.Context(), prompt+question.MaxTokens, 0)
	if err != nil || !reserved.Allowed {
		m.refused.Add(1)
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	if m.slow {
		time.Sleep(time.Duration(2e8 + rand.Int64N(3e9))) // how long the answer takes
	}
	tokens := prompt + 1 + rand.IntN(max(1, question.MaxTokens*2/3))
	_ = reserved.Settle(tokens)
	m.used.Add(int64(tokens))
	fmt.Fprintf(w, `{"usage":{"total_tokens":%d}}`, tokens)
}

// RoundTrip calls ServeHTTP without a network, so virtual time passes.
func (m *model) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(rand.Int64N(50e6))) // the time in the network
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	time.Sleep(time.Duration(rand.Int64N(50e6)))
	return w.Result(), nil
}

func question(words, maxTokens int) string {
	return fmt.Sprintf(`{"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, maxTokens, strings.Repeat("word ", words))
}

func tokensIn(body []byte) int {
	var answer struct {
		Usage struct {
			TotalTokens int `json:"total_tokens"`
		} `json:"usage"`
	}
	_ = json.NewDecoder(bytes.NewReader(body)).Decode(&answer)
	return answer.Usage.TotalTokens
}

func post(g http.Handler, key string, words, maxTokens int) (status, tokens int) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(question(words, maxTokens)))
	r.Header.Set("Authorization", "Bearer "+key)
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w.Code, tokensIn(w.Body.Bytes())
}

// Three gateways share one upstream limit. The model must refuse nothing, at least 95 % of its
// tokens must be used, and tenants must get them by weight, whichever gateways serve their requests.
func TestThreeGatewaysUseTheModelInFullAndTenantsShareItByWeight(t *testing.T) {
	server := redistest.Start(t)
	synctest.Test(t, func(t *testing.T) {
		m := newModel(true)
		set := ratelimit.Must(policy.Parse(rules))
		fleet := make([]*gateway, gateways)
		var clients []*redis.Client
		for i := range fleet {
			client := redis.NewClient(&redis.Options{Addr: server.Addr, Dialer: redistest.InBubble})
			clients = append(clients, client)
			engine := policyredis.New(client, &policyredis.Options{Timeout: 10 * time.Second})
			g, err := newGateway(set, engine, "http://model.example", "key", m)
			require.NoError(t, err)
			fleet[i] = g
		}
		var used [2]atomic.Int64
		var counts, over atomic.Bool
		var all sync.WaitGroup
		for i, key := range []string{"gold-key", "silver-key"} {
			for n := range 30 {
				all.Go(func() {
					for k := n; !over.Load(); k++ {
						g := fleet[k%gateways]
						if i == 1 {
							g = fleet[0] // silver sends all requests through one gateway
						}
						_, tokens := post(g, key, 20+rand.IntN(200), 100+rand.IntN(900))
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
				if status, _ := post(fleet[modest%gateways], "bronze-key", 20, 500); status == http.StatusOK {
					served++
				}
			}
		})
		time.Sleep(2 * time.Minute) // until the burst is spent
		counts.Store(true)
		before := m.used.Load()
		time.Sleep(6 * time.Minute)
		inAll := m.used.Load() - before
		counts.Store(false)
		over.Store(true)
		all.Wait()
		t.Logf("gold used %d, silver %d, all %d of %d; %d of %d modest ones served; %d refused", used[0].Load(), used[1].Load(), inAll, 6*perMinute, served, modest, m.refused.Load())
		require.Zero(t, m.refused.Load())
		require.Greater(t, inAll, int64(6*perMinute*95/100))
		require.InDelta(t, 3, float64(used[0].Load())/float64(used[1].Load()), 0.3)
		require.GreaterOrEqual(t, served, modest*97/100)
		for _, g := range fleet {
			require.NoError(t, g.policies.Flush(t.Context()))
		}
		time.Sleep(time.Minute)
		for _, c := range clients {
			require.NoError(t, c.Close())
		}
		time.Sleep(time.Minute)
	})
}

// lines is the output of several processes.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

var address = regexp.MustCompile(`http://[0-9.:]+`)

// The example's processes serve requests. The model counts as a provider does,
// and together they stay within its limit. They end when they are interrupted.
func TestTheProcessesOfTheExampleShareTheLimit(t *testing.T) {
	m := newModel(false)
	upstream := httptest.NewServer(m)
	defer upstream.Close()
	server := redistest.Start(t)
	ctx, stop := context.WithCancel(t.Context())
	out := new(lines)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, upstream.URL, server.Addr, 0, out) }()
	require.Eventually(t, func() bool { return len(address.FindAllString(out.String(), -1)) == gateways }, time.Minute, 10*time.Millisecond)
	var all sync.WaitGroup
	var tokens [gateways]atomic.Int64
	var failed atomic.Int64
	for n, url := range address.FindAllString(out.String(), -1) {
		for k := range 8 { // 24 requests of 3,000 tokens exceed the burst
			all.Go(func() {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(question(20, 3000)))
				if err != nil {
					failed.Add(1)
					return
				}
				r.Header.Set("Authorization", "Bearer "+[]string{"gold", "silver", "bronze"}[k%3]+"-key")
				w, err := http.DefaultClient.Do(r)
				if err != nil {
					failed.Add(1)
					return
				}
				defer w.Body.Close()
				body, _ := io.ReadAll(w.Body)
				if w.StatusCode != http.StatusOK && w.StatusCode != http.StatusTooManyRequests {
					t.Log(w.Status, string(body))
					failed.Add(1)
				}
				tokens[n].Add(int64(tokensIn(body)))
			})
		}
	}
	all.Wait()
	require.Zero(t, failed.Load())
	require.Zero(t, m.refused.Load())
	sum := int64(0)
	for n := range tokens {
		require.Positive(t, tokens[n].Load(), "gateway %d", n)
		sum += tokens[n].Load()
	}
	require.Equal(t, m.used.Load(), sum)
	stop()
	require.NoError(t, <-ended)
}

func TestARequestThatCannotPassIsRefusedAtOnce(t *testing.T) {
	m := newModel(false)
	g, err := newGateway(ratelimit.Must(policy.Parse(rules)), policy.Memory(nil), "http://model.example", "key", m)
	require.NoError(t, err)
	for _, c := range []struct {
		key       string
		maxTokens int
		want      int
	}{
		{"no-key", 1, http.StatusUnauthorized}, {"gold-key", 0, http.StatusBadRequest}, {"gold-key", -1, http.StatusBadRequest},
		{"gold-key", perMinute, http.StatusBadRequest},
	} {
		status, _ := post(g, c.key, 1, c.maxTokens)
		require.Equal(t, c.want, status, "%+v", c)
	}
	require.Zero(t, m.used.Load())
}
