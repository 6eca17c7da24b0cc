package httplimit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/pace"
	"github.com/weir-go/ratelimit/keyfunc"
)

// TransportOptions configure [NewTransport]. Zero values mean the defaults. Functions may be called concurrently.
type TransportOptions struct {
	// Key names the queue for a request. Advice in one response applies to all requests with the same key. If Key
	// returns an error, the request fails. It defaults to [TargetAccount]: two tokens on one host are two budgets.
	Key func(r *http.Request) (string, error)

	// Cost returns a request's cost in the limiter. It defaults to the cost of [WithCost], or 1.
	Cost func(r *http.Request) int

	// Advice reads a response in another dialect. If the status is 400 or above, it may read the body. It
	// gets the first KiB, or nothing if this has not arrived within a second, and the caller gets the body in
	// full. It must not read another body. If Advice is nil or returns false, [AdviceOf] reads the response.
	Advice func(resp *http.Response) (Advice, bool)

	// MaxWait bounds how long a request may wait, for the client's own limiter or because a server
	// demands it. If a request would wait longer, it fails at once with [ratelimit.ErrLimited] and the
	// wait. It defaults to one minute. If negative, a request waits for as long as its context allows.
	MaxWait time.Duration

	// MaxServerWait bounds the wait demanded by a server. It defaults to ten years. See [Transport.Reset].
	MaxServerWait time.Duration

	// MaxRetries is how often a refused request may be sent again, each time after the server's wait.
	// If zero, it is not sent again. The body must be empty or have [http.Request.GetBody]. A 503
	// with Retry-After counts as a refusal only for an idempotent method or with an Idempotency-Key.
	// If the deadline or MaxWait leaves no time for another attempt, the caller gets the refusal.
	MaxRetries int

	// MaxInFlight is how many of a key's requests may be in flight. If zero, there is no maximum. A request is
	// in flight until its response's body is read or closed, and after a 101 until the connection is closed. A
	// request takes its slot before its turn in the limiter, so when slots come back after a stall, the
	// waiting requests are sent at the limiter's pace. The wait for a slot counts like any other: see MaxWait.
	MaxInFlight int

	// Inflight limits the requests in flight by its permits. The permits' keys come from Key. If Key is nil, they are the
	// hosts ([TargetHost]). A permit is held until the response's body is read or closed, and after a 101 until the
	// connection is closed. The limit may be adaptive ([inflight.Learn]); then the time until the turn counts as part of
	// the request's time. A request takes its permit before its turn in the limiter, so when permits come back after a
	// stall, the waiting requests are sent at the limiter's pace. The wait for a permit counts like any other: see MaxWait.
	Inflight *inflight.Limiter[string]

	// Outcome returns a request's outcome for Inflight's adaptive limit, given its response or error.
	// usual is the default outcome, also used if Outcome is nil. It is as in [InflightOptions], with
	// three exceptions. If the request's context, and so the Timeout of an http.Client, ends first,
	// it is Cancelled. The base transport's timeout is Dropped, and so is the status 429.
	Outcome func(r *http.Request, resp *http.Response, err error, usual inflight.Outcome) inflight.Outcome

	// MaxKeys is for how many idle keys the Transport keeps servers' advice. It defaults to 4096.
	MaxKeys int
}

// Transport is an [http.RoundTripper] that obeys the client's own limit and the servers'
// announced limits. Make one with [NewTransport]. It is safe for concurrent use.
//
// Requests with one key wait in a queue. If a request's deadline is before its
// turn, it fails at once, wrapping [context.DeadlineExceeded]. A Transport obeys:
//
//   - Retry-After, X-RateLimit-Retry-After, Retry-After-Ms and x-ms-retry-after-ms of a 403, 408, 413, 418, 420, 429, 500, 502, 503 or 529.
//     They have seconds (0, too), a span such as "30s", a date or a Unix time. Of several, the longest counts.
//   - In the first KiB of a refusal's body: Google's RetryInfo, "try again in 20s", GitHub's secondary limit.
//   - x-should-retry: false, Stripe-Should-Retry: false, and a throttling error in x-amzn-errortype.
//   - The remaining budget until a reset: RateLimit (drafts 07 to 11, and a and w of the next), RateLimit-Remaining, the fields of OpenAI,
//     Anthropic, HubSpot, Shopify, GitHub, Discord, X and Okta. Where the budget is in tokens, a request counts as its cost ([WithCost]).
//   - A 429 or 529 without these. Then nothing is sent for a second, and twice as long after each further one, up to a minute.
//   - The second connection error in a row. Then nothing is sent for a second, and twice as long after each further one, up to 15 s.
//
// If a server's answers lack the remaining budget, the Transport learns a pace. After a refusal it sends requests
// at intervals. Each refusal lengthens them, and each served request shortens them. Six refusals in a row count
// as an outage; after it the earlier pace holds again. So several processes with one account find their shares
// without exchanging messages. A 500 counts as a refusal if a program's Advice reports it as Refused.
//
// After a refusal or a reset, requests are first sent one at a time. Each served request permits
// one more in flight, for at most a minute. Dates are compared with the response's Date.
type Transport struct {
	base      http.RoundTripper
	pacer     *pace.Pacer[*http.Request] // nil if there is only Inflight
	permits   *edge.Permits              // nil if there is no Inflight
	permitKey func(*http.Request) (string, error)
	opts      TransportOptions
}

// NewTransport returns a Transport. It sends requests with base as the limiter allows. A nil base stands for
// [http.DefaultTransport]. See [ratelimit.Map]; use [ratelimit.Unlimited] for the server's limits alone. If the
// limiter is nil, TransportOptions.Inflight must be set. Then requests are sent as its permits allow. The Transport
// reads no servers' announcements, and sends no request again. Do not use such a Transport as the base of a
// Transport with a rate: after a stall it would send a burst above the rate. The error names the invalid option.
func NewTransport(base http.RoundTripper, limiter ratelimit.Reserver[*http.Request], opts *TransportOptions) (*Transport, error) {
	if err := optional.NilInside("httplimit: NewTransport: base", base); err != nil {
		return nil, err
	}
	t := &Transport{base: cmp.Or(base, http.DefaultTransport)}
	if opts != nil {
		t.opts = *opts
	}
	o := &t.opts
	paced := limiter != nil || o.Inflight == nil
	if paced {
		if err := edge.Check("httplimit", "NewTransport", "request", limiter); err != nil {
			return nil, err
		}
	}
	switch {
	case !paced && (o.Cost != nil || o.Advice != nil || o.MaxServerWait != 0 || o.MaxRetries != 0 || o.MaxInFlight != 0 || o.MaxKeys != 0):
		return nil, errors.New("httplimit: without a limiter only Key, MaxWait, Inflight and Outcome of TransportOptions can be set: for the server's limits alone give NewTransport a limiter of ratelimit.Unlimited")
	case o.Outcome != nil && o.Inflight == nil:
		return nil, errors.New("httplimit: TransportOptions.Outcome is for an adaptive limit, and Inflight is not set")
	}
	if err := pace.CheckOptions("httplimit: TransportOptions", o.MaxServerWait, o.MaxRetries, o.MaxInFlight, o.MaxKeys); err != nil {
		return nil, err
	}
	if o.Inflight != nil {
		t.permits, t.permitKey = edge.NewPermits("httplimit", o.Inflight, pace.Bound(o.MaxWait)), o.Key
		if o.Key == nil {
			t.permitKey = TargetHost
		}
	}
	if !paced {
		return t, nil
	}
	if o.Key == nil {
		o.Key = TargetAccount
	}
	if o.Cost == nil {
		o.Cost = func(r *http.Request) int { return pace.DeclaredCost(r.Context()) }
	}
	t.pacer = pace.New("httplimit", limiter, pace.Options[*http.Request]{Cost: o.Cost, Units: pace.DeclaredCost, MaxWait: pace.Bound(o.MaxWait), MaxKeys: o.MaxKeys, Longest: o.MaxServerWait, MaxInFlight: o.MaxInFlight})
	return t, nil
}

// TargetHost is a key function for the scheme and host of a client's request, such as "https://api.example.com".
func TargetHost(r *http.Request) (string, error) {
	if r.URL == nil || r.URL.Host == "" {
		return "", fmt.Errorf("%w: no host in the URL", keyfunc.ErrNoKey)
	}
	return targetHost(r), nil
}

// credentials are the fields by which servers distinguish clients.
var credentials = [...]string{"Authorization", "X-Api-Key", "Api-Key", "Proxy-Authorization"}

// TargetAccount is a key function for the host, as in [TargetHost], and the account there. The account is a hash
// over the fields Authorization, X-Api-Key, Api-Key and Proxy-Authorization, and a user in the URL. If there are
// none, the key is the host alone. The hash differs from process to process and does not reveal the credentials.
func TargetAccount(r *http.Request) (string, error) {
	host, err := TargetHost(r)
	if err != nil {
		return "", err
	}
	var h maphash.Hash
	h.SetSeed(seed)
	found := false
	for i, field := range credentials {
		for _, v := range r.Header[field] {
			found = true
			_ = h.WriteByte(byte(i))
			_, _ = h.WriteString(strconv.Itoa(len(v)))
			_ = h.WriteByte(':')
			_, _ = h.WriteString(v)
		}
	}
	if user := r.URL.User; user != nil {
		found = true
		_ = h.WriteByte(byte(len(credentials)))
		_, _ = h.WriteString(user.String())
	}
	if !found {
		return host, nil
	}
	return host + accountMark + strconv.FormatUint(h.Sum64(), 36), nil
}

// accountMark separates the host from the account. It never occurs in a host.
const accountMark = "#"

var seed = maphash.MakeSeed()

func targetHost(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	scheme, host := strings.ToLower(r.URL.Scheme), strings.ToLower(r.URL.Host)
	switch scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return scheme + "://" + host
}

// TransportStats count requests. All fields except InFlight count since the Transport was made.
type TransportStats struct {
	Sent      uint64 // requests sent, repetitions included
	Waited    uint64 // requests after a wait
	Refused   uint64 // refusals by the server
	Retried   uint64 // requests sent again
	Failed    uint64 // requests never sent
	Unsettled uint64 // uncancelled bookings
	InFlight  uint64 // requests in flight now: until the response, or with MaxInFlight until its body is read or closed
}

// Stats returns the counters.
func (t *Transport) Stats() (s TransportStats) {
	if t == nil {
		return s
	}
	if t.pacer != nil {
		s = TransportStats(t.pacer.Stats())
	}
	if t.permits != nil {
		sent, failed, inFlight := t.permits.Counted()
		s.Sent, s.Failed, s.InFlight = s.Sent+sent, s.Failed+failed, s.InFlight+inFlight
	}
	return s
}

// Reset forgets what a key's server has announced. The key is a value from TransportOptions.Key.
// A host such as "https://api.example.com" stands for all its accounts: see [TargetAccount].
func (t *Transport) Reset(key string) {
	if t != nil && t.pacer != nil {
		t.pacer.Reset(key)
		t.pacer.ResetAll(key + accountMark)
	}
}

// CloseIdleConnections closes the idle connections of the base RoundTripper if it has such a method.
func (t *Transport) CloseIdleConnections() {
	if t != nil {
		closeIdleConnections(t.base)
	}
}

func closeIdleConnections(base http.RoundTripper) {
	if c, ok := base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip waits until the request may be sent, and sends it. If the request was not sent,
// the error wraps the context's error or [ratelimit.ErrLimited], or is the limiter's.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case t == nil || t.pacer == nil && t.permits == nil:
		closeBody(r)
		return nil, optional.Zero("httplimit", "Transport", "NewTransport")
	case t.permits == nil:
		return t.pace(r, 0)
	}
	return t.hold(r)
}

// pace sends the request at its turn. waited is the part of MaxWait that is already over.
func (t *Transport) pace(r *http.Request, waited time.Duration) (*http.Response, error) {
	key, err := t.opts.Key(r)
	if err != nil {
		closeBody(r)
		return nil, keyError(err)
	}
	p := t.pacer.ArriveAfter(r.Context(), key, waited)
	leaves := true
	defer func() {
		if leaves { // Leave is called after a panic, too
			t.pacer.Leave(p)
		}
	}()
	var refusal *http.Response // the response with the last refusal
	for retries := 0; ; retries++ {
		if err := t.pacer.Await(p, r); err != nil {
			closeBody(r)
			if refusal != nil && r.Context().Err() == nil { // the limiter leaves no time for another attempt
				return refusal, nil
			}
			return nil, err
		}
		resp, err := t.base.RoundTrip(r)
		a := t.learn(p, r, resp, err)
		if err != nil || resp == nil {
			return resp, err
		}
		again, repeats := r, false
		if retries < t.opts.MaxRetries && repeatable(r, resp, a) && !p.Late() {
			again, repeats = repeat(r)
		}
		if !repeats {
			leaves = t.opts.MaxInFlight == 0 || !onEnd(resp, func(error) { t.pacer.Leave(p) })
			return resp, nil
		}
		holdBody(resp, p.Opens())
		refusal, r = resp, again
		t.pacer.Again(p)
	}
}

// learn records a response's advice, or the lack of one, and returns it.
func (t *Transport) learn(p *pace.Place, r *http.Request, resp *http.Response, err error) (a Advice) {
	now := time.Now()
	if resp == nil || err != nil {
		t.pacer.Learn(p, pace.Advice{Broken: r.Context().Err() == nil && isBroken(err)}, now)
		return a
	}
	known := false
	var head []byte
	if t.opts.Advice != nil || wantsHead(resp) {
		head = headOf(resp)
		now = time.Now()
	}
	if t.opts.Advice != nil {
		a, known = t.opts.Advice(withHead(resp, head))
	}
	if !known {
		a = adviceOf(resp, head, now)
	}
	t.pacer.Learn(p, a.pace(now), now)
	if a.Refused { // so the request has cost nothing
		t.pacer.Refund(p)
	}
	return a
}

// isBroken reports whether an error comes from the connection, not from the request or another limit.
func isBroken(err error) bool {
	var network net.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled), outcome.CauseOf(err).Refused():
		return false
	}
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// repeatable reports whether the server has refused the request and the request can safely be sent again.
func repeatable(r *http.Request, resp *http.Response, a Advice) bool {
	if a.NoRetry || hasBody(r) && r.GetBody == nil {
		return false
	}
	return a.Refused || resp.StatusCode == http.StatusServiceUnavailable && a.Wait > 0 && idempotent(r)
}

func idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// repeat returns a copy of the request with its body from the beginning. It returns false if the body cannot be read again.
func repeat(r *http.Request) (again *http.Request, ok bool) {
	if !hasBody(r) {
		return r, true
	}
	b, err := r.GetBody()
	if err != nil {
		return nil, false
	}
	again = r.Clone(r.Context())
	again.Body = b
	return again, true
}

// maxHolding bounds how long a refusal's body is read.
const maxHolding = time.Second

// holdBody reads a body, so its connection can be reused. It stops if the body is large, or has not arrived by the
// time when the request may be sent again. Then Close ends the blocked Read. The response keeps the bytes read.
func holdBody(resp *http.Response, until time.Time) {
	if resp.Body == nil {
		return
	}
	body := resp.Body
	closing := time.AfterFunc(min(time.Until(until), maxHolding), func() { _ = body.Close() })
	defer func() {
		if closing.Stop() {
			_ = body.Close()
		}
	}()
	var held bytes.Buffer
	_, err := io.CopyN(&held, body, 64<<10)
	resp.Body = io.NopCloser(&held)
	if err != io.EOF {
		resp.Body = io.NopCloser(io.MultiReader(&held, cutOff{}))
	}
}

// cutOff replaces the rest of a body.
type cutOff struct{}

func (cutOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func keyError(err error) error { return fmt.Errorf("httplimit: TransportOptions.Key: %w", err) }

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// WithCost returns a context with one request's cost, for example in
// tokens, for a client's [Transport]. The limiter refuses a cost below 0.
func WithCost(ctx context.Context, cost int) context.Context { return pace.WithCost(ctx, cost) }

// SettleCost replaces the charge of the last request under a [WithCost] context by its real cost. If none was
// sent, it does nothing. It returns the errors of [ratelimit.Reservation.Settle]. It is safe for concurrent use.
func SettleCost(ctx context.Context, actual int) error { return pace.SettleCost(ctx, actual) }
