// Llmgateway stands between tenants and a language model that allows so many tokens a minute in all. Tenants
// share them by weight: what one leaves, the others get. What a request costs is known when the answer is there,
// so the most that it may cost is reserved first, and settled at what the answer says:
//
//	go run ./examples/llmgateway -upstream https://api.example.com/v1/chat/completions
//	curl -H 'Authorization: Bearer gold-key' -d '{"max_tokens":100,"messages":[…]}' http://127.0.0.1:8080/
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"math"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
)

// tenant is who has a key of the gateway.
type tenant struct {
	name   string
	weight int
}

// tenants are found by the Authorization header. A name that a stranger can make up would get a share too.
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

// patience is how long a request waits for its tenant's share before it is answered with 429.
const patience = 20 * time.Second

type gateway struct {
	upstream, key string
	client        *http.Client
	limiter       *fair.Limiter[tenant]
}

func newGateway(upstream, key string, perMinute int, transport http.RoundTripper) (*gateway, error) {
	// The model counts a request a little later than the gateway does, and so sees up to that time's tokens more
	// at once: a tenth of its burst is left for that.
	limit := ratelimit.TokenBucket(ratelimit.PerMinute(perMinute), perMinute*9/10)
	limiter, err := fair.New(limit, &fair.Options[tenant]{Weight: func(t tenant) int { return t.weight }})
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport, Timeout: 2 * time.Minute}
	return &gateway{upstream: upstream, key: key, client: client, limiter: limiter}, nil
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	var question map[string]json.RawMessage // a struct would take MAX_TOKENS too, which the backend does not
	maxTokens := 0
	if json.Unmarshal(body, &question) != nil || json.Unmarshal(question["max_tokens"], &maxTokens) != nil || maxTokens < 1 {
		http.Error(w, "max_tokens is missing: want 1 or more", http.StatusBadRequest)
		return
	}
	most := len(body)/4 + min(maxTokens, math.MaxInt32) // of English, 4 characters are about a token
	reserved, err := g.reserve(r.Context(), t, most)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		http.Error(w, "max_tokens is above what the gateway can ever pass", http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case !reserved.Allowed:
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(reserved.RetryAfter.Seconds()))))
		http.Error(w, "your share is spent", http.StatusTooManyRequests)
	default:
		g.forward(w, r, body, reserved)
	}
}

// reserve reserves tokens. A denial says when to come again, and then the tokens are there in most cases.
func (g *gateway) reserve(ctx context.Context, t tenant, tokens int) (*ratelimit.Reservation, error) {
	for until := time.Now().Add(patience); ; {
		reserved, err := g.limiter.Reserve(ctx, t, tokens, 0)
		if err != nil || reserved.Allowed || time.Now().Add(reserved.RetryAfter).After(until) {
			return reserved, err
		}
		select {
		case <-time.After(reserved.RetryAfter):
		case <-ctx.Done():
			return reserved, ctx.Err()
		}
	}
}

// forward asks the model, and settles what was reserved. Where it is not known what the model has counted, the
// reserved tokens stay charged.
func (g *gateway) forward(w http.ResponseWriter, r *http.Request, body []byte, reserved *ratelimit.Reservation) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, g.upstream, bytes.NewReader(body))
	if err != nil {
		reserved.Cancel() // nothing was sent
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
	case response.StatusCode >= 400 && response.StatusCode < 500: // refused; what a failure has cost is not known
		reserved.Cancel()
	case json.Unmarshal(answer, &cost) == nil && cost.Usage.TotalTokens > 0:
		reserved.Settle(cost.Usage.TotalTokens)
	}
	w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
	w.WriteHeader(response.StatusCode)
	w.Write(answer)
}
