// Llmgateway stands between tenants and a language model with a limit of tokens a minute for all. Tenants
// share the tokens by weight, and use what others leave. A request's cost becomes known with its answer.
// So the gateway reserves the maximum cost, waits for its turn, and settles at the answer's figure:
//
//	go run ./examples/llmgateway -upstream https://api.example.com/v1/chat/completions
//	curl -H 'Authorization: Bearer gold-key' -d '{"max_tokens":100,"messages":[…]}' http://127.0.0.1:8080/
//	curl http://127.0.0.1:8080/usage
//
// A tenant may also have 100 requests at the same time, and each of its users 8. The header
// User names the user. If one user has a runaway script, there is still room for the others.
//
// The address /usage shows the tokens used in the last minute, and the limit. Under
// load both should be nearly equal. In a load's first minute, the burst is added.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
)

// tenant is a customer of the gateway.
type tenant struct {
	name   string
	weight int
}

// tenants maps Authorization headers to the known tenants. If the key
// were a name that anyone can invent, a stranger would get a share, too.
var tenants = map[string]tenant{
	"Bearer gold-key":   {"gold", 3},
	"Bearer silver-key": {"silver", 1},
	"Bearer bronze-key": {"bronze", 1},
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to listen on")
	upstream := flag.String("upstream", "", "`URL` of the model")
	perMinute := flag.Int("tokens", 60_000, "tokens that the model allows in a minute")
	flag.Parse()
	g, err := newGateway(*upstream, os.Getenv("UPSTREAM_KEY"), *perMinute, http.DefaultTransport)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*addr, g))
}

// patience is the maximum time for which a request waits for its tenant's share. Then the answer is 429.
const patience = 20 * time.Second

type gateway struct {
	upstream, key string
	client        *http.Client
	limiter       *fair.Limiter[tenant]
	atOnce        ratelimit.Reserver[call]
	perMinute     int
	used          usage
}

// call is a request of a tenant's user.
type call struct{ tenant, user string }

// ofTenant and ofUser are the maximum numbers of requests at the
// same time. Their units are held for longer than any request takes.
const (
	ofTenant = 100
	ofUser   = 8
	hold     = patience + 3*time.Minute
)

// newCaps returns a limiter with both caps. If either denies, the other
// holds nothing. Requests without a user have only the tenant's cap.
func newCaps() (ratelimit.Reserver[call], error) {
	tenants, err := ratelimit.New[string](ratelimit.Concurrent(ofTenant, hold).Named("tenant"), nil)
	if err != nil {
		return nil, err
	}
	users, err := ratelimit.New[call](ratelimit.Concurrent(ofUser, hold).Named("user"), nil)
	if err != nil {
		return nil, err
	}
	byTenant := ratelimit.By(tenants, func(c call) (string, error) { return c.tenant, nil })
	byUser := ratelimit.By(users, func(c call) (call, error) { return c, nil })
	byUser.Limit = func(c call) ratelimit.Limit {
		if c.user == "" {
			return ratelimit.Unlimited()
		}
		return ratelimit.Limit{}
	}
	return ratelimit.All(byTenant, byUser)
}

// usage counts the tokens of the last minute, by second.
type usage struct {
	mu     sync.Mutex
	second int64     // the latest second with a count
	tokens [60]int64 // indexed by the second modulo 60
}

// add adds tokens at an instant, and returns the sum of the minute up to it. With 0 tokens it only returns the sum.
func (u *usage) add(now time.Time, tokens int) (sum int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	second := max(now.Unix(), u.second) // the clock may be set back
	for u.second = max(u.second, second-60); u.second < second; {
		u.second++
		u.tokens[u.second%60] = 0
	}
	u.tokens[second%60] += int64(tokens)
	for _, n := range u.tokens {
		sum += n
	}
	return sum
}

func newGateway(upstream, key string, perMinute int, transport http.RoundTripper) (*gateway, error) {
	// The model counts a request slightly later than the gateway. Meanwhile the gateway regains
	// tokens, so the model sees more at once. A tenth of its burst is left for them. The burst must
	// also be large enough for estimates that are too high. With estimates e, real costs a, the rate
	// r and calls of length d, the whole rate is used if the burst is at least e·r·d/a − r·d + e.
	limit := ratelimit.TokenBucket(ratelimit.PerMinute(perMinute), perMinute*9/10)
	limiter, err := fair.New(limit, &fair.Options[tenant]{Weight: func(t tenant) int { return t.weight }})
	if err != nil {
		return nil, err
	}
	atOnce, err := newCaps()
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport, Timeout: 2 * time.Minute}
	return &gateway{upstream: upstream, key: key, client: client, limiter: limiter, atOnce: atOnce, perMinute: perMinute}, nil
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.URL.Path == "/usage" {
		used := g.used.add(time.Now(), 0)
		fmt.Fprintf(w, "%d of %d tokens in the last minute (%d %%)\n", used, g.perMinute, used*100/int64(g.perMinute))
		return
	}
	t, ok := tenants[r.Header.Get("Authorization")]
	if !ok {
		http.Error(w, "unknown key", http.StatusUnauthorized)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}
	var question map[string]json.RawMessage // a struct would also accept MAX_TOKENS, which the backend ignores
	maxTokens := 0
	if json.Unmarshal(body, &question) != nil || json.Unmarshal(question["max_tokens"], &maxTokens) != nil || maxTokens < 1 {
		http.Error(w, "max_tokens is missing: want 1 or more", http.StatusBadRequest)
		return
	}
	maxTokens = min(maxTokens, math.MaxInt32)
	held, err := g.atOnce.Reserve(r.Context(), call{t.name, r.Header.Get("User")}, 1, 0)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	case !held.Allowed:
		tooMany(w, held.RetryAfter, "too many requests at the same time of this "+held.Limit.Name)
		return
	}
	defer held.Cancel()
	estimate := len(body)/4 + maxTokens // in English, a token is about 4 characters
	reserved, err := g.limiter.Reserve(r.Context(), t, estimate, patience)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		http.Error(w, "max_tokens is above the largest request that the gateway can ever pass", http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case !reserved.Allowed:
		tooMany(w, reserved.RetryAfter, "your share is spent")
	default:
		g.forward(w, r, body, len(body)+maxTokens, reserved) // each token has at least one character
	}
}

func tooMany(w http.ResponseWriter, retryAfter time.Duration, text string) {
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter.Seconds()))))
	http.Error(w, text, http.StatusTooManyRequests)
}

// forward sends the request to the model, and settles the reservation. If the model
// returns no count of tokens, the estimate stays charged. A count above most, the maximum
// for this request, is ignored, because an upstream's error must not bar the tenant.
func (g *gateway) forward(w http.ResponseWriter, r *http.Request, body []byte, most int, reserved *ratelimit.Reservation) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, g.upstream, bytes.NewReader(body))
	if err != nil {
		reserved.Cancel() // the request was not sent
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	request.Header.Set("Authorization", "Bearer "+g.key)
	request.Header.Set("Content-Type", "application/json")
	response, err := g.client.Do(request)
	if err != nil {
		http.Error(w, "the model does not answer", http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		http.Error(w, "the model's answer broke off", http.StatusBadGateway)
		return
	}
	var cost struct {
		Usage struct {
			TotalTokens int `json:"total_tokens"`
		} `json:"usage"`
	}
	switch {
	case response.StatusCode >= 400 && response.StatusCode < 500: // the model refused; the cost of any other failure is unknown
		reserved.Cancel()
	case json.Unmarshal(answer, &cost) != nil || cost.Usage.TotalTokens < 1 || cost.Usage.TotalTokens > most:
		log.Printf("llmgateway: the model's answer has no credible number of tokens; the estimate stays charged")
	default:
		g.used.add(time.Now(), cost.Usage.TotalTokens)
		reserved.Settle(cost.Usage.TotalTokens)
	}
	w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
	w.WriteHeader(response.StatusCode)
	w.Write(answer)
}
