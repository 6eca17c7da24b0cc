package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/policy"
)

// tenants maps Authorization headers to the known tenants. If the key
// were a name that anyone can invent, a stranger would get a share, too.
var tenants = map[string]policy.Attributes{
	"Bearer gold-key":   {"tenant": "gold", "plan": "gold"},
	"Bearer silver-key": {"tenant": "silver", "plan": "free"},
	"Bearer bronze-key": {"tenant": "bronze", "plan": "free"},
}

// patience is the maximum time for which a request waits for its tenant's share. Then the answer is 429.
const patience = 20 * time.Second

type gateway struct {
	upstream, key string
	client        *http.Client
	policies      *policy.Policies
	limiter       ratelimit.Reserver[policy.Request]
}

func newGateway(set *policy.Set, engine policy.Engine, upstream, key string, transport http.RoundTripper) (*gateway, error) {
	local, err := policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: gateways})})
	if err != nil {
		return nil, err
	}
	shared, err := policy.New(set, &policy.Options{Engine: engine, StandIn: local})
	if err != nil {
		return nil, err
	}
	// There is no timeout here: if a request waits in line, Redis has not failed. Policyredis bounds its calls itself.
	limiter, err := failover.New[policy.Request](shared, local, &failover.Options{Timeout: -1})
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport, Timeout: 2 * time.Minute}
	return &gateway{upstream: upstream, key: key, client: client, policies: shared, limiter: limiter}, nil
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tenant, ok := tenants[r.Header.Get("Authorization")]
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
	estimate := len(body)/4 + maxTokens // in English, a token is about 4 characters
	reserved, err := g.limiter.Reserve(r.Context(), tenant, estimate, patience)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		http.Error(w, "max_tokens is above the largest request that the gateway can ever pass", http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case !reserved.Allowed:
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(reserved.RetryAfter.Seconds()))))
		http.Error(w, "the limit "+reserved.Limit.Name+" has no room for you now", http.StatusTooManyRequests)
	default:
		g.forward(w, r, body, len(body)+maxTokens, reserved) // each token has at least one character
	}
}

// forward sends the request to the model, and settles the reservation at the answer's tokens.
// If their number is unknown, or so large that it cannot be true, the estimate stays charged.
func (g *gateway) forward(w http.ResponseWriter, r *http.Request, body []byte, most int, reserved *ratelimit.Reservation) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, g.upstream, bytes.NewReader(body))
	if err != nil {
		_ = reserved.Cancel() // the request was not sent
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
		err = reserved.Cancel()
	case json.Unmarshal(answer, &cost) != nil || cost.Usage.TotalTokens < 1 || cost.Usage.TotalTokens > most:
		log.Print("llmgateway: the model's answer has no credible number of tokens; the estimate stays charged")
	default:
		err = reserved.Settle(cost.Usage.TotalTokens)
	}
	if err != nil {
		log.Printf("llmgateway: %v; the estimate stays charged", err)
	}
	w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(answer)
}
