package httplimit

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/limitfields"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// InflightOptions configure [NewInflight].
type InflightOptions struct {
	// Units returns how many units a request takes. It defaults to 1.
	Units func(r *http.Request) int

	// Skip reports whether a request passes without a permit.
	Skip func(r *http.Request) bool

	// MaxWait is how long a request may wait in its key's queue. If zero, the request waits as long as its context allows.
	MaxWait time.Duration

	// Outcome returns a request's outcome for an adaptive limit, given its status as in [Options].Settle, and the
	// default outcome. By default, 101, an event stream, an inner limiter's refusal and a failed upload are
	// Ignored. 503 and 504 are Dropped, and so is a request whose context has passed a deadline. (No client of
	// net/http can set such a deadline.) Other server errors are Cancelled, and so is a request whose client has
	// gone. All else, even 429, is a Success. If nil, the default outcome is used. Then a hijacked connection
	// counts as ignored from the hijack on, and an event stream from its first flush: see [inflight.Permit.Ignore].
	Outcome func(r *http.Request, status int, usual inflight.Outcome) inflight.Outcome

	// KeyCode is the status, from 400 to 499, for a request whose key is missing or malformed. It defaults to 400.
	KeyCode int

	// Challenge is the WWW-Authenticate value, as in [Options].
	Challenge string

	// PlainHTTP refuses RPC requests like other requests, as in [Options].
	PlainHTTP bool

	// OnRefused answers a refused request. Cache-Control, Retry-After and WWW-Authenticate
	// are set; the status is not. If nil, the answer is a problem document.
	OnRefused func(w http.ResponseWriter, r *http.Request, err error)
}

// Inflight is middleware that limits how many requests are served at the same time. Make one with
// [NewInflight]. It is safe for concurrent use. All wrapped handlers share its limits. If a handler
// hijacks the connection, as a WebSocket's does, it keeps its permit until the connection is closed.
//
// A request without room gets 503, with the key's recent wait as Retry-After. So
// does a request to a full key table. A request for more units than its limit gets
// 403. A request without a valid key gets KeyCode, and one with another failure 500.
type Inflight[K comparable] struct {
	core   *edge.Inflight[*http.Request, K]
	opts   InflightOptions
	badKey *problem
}

// InflightStats count requests.
type InflightStats struct {
	Skipped  uint64 // exempt by Skip or ratelimit.SkipLayer
	Admitted uint64 // passed on to the handler
	Shed     uint64 // no room, or the client left
	Failed   uint64 // no decision, or the request can never pass
	Rejected uint64 // refused without a valid key
}

// NewInflight returns middleware that holds a permit while a request is served. If the key
// function returns [ratelimit.SkipLayer], the request passes without one. The limiter's
// limit applies to each key: to limit the whole server, set [inflight.Options].Total.
func NewInflight[K comparable](l *inflight.Limiter[K], key func(*http.Request) (K, error), opts *InflightOptions) (*Inflight[K], error) {
	var o InflightOptions
	if opts != nil {
		o = *opts
	}
	if err := checkKeyCode("InflightOptions", o.KeyCode, &o.Challenge); err != nil {
		return nil, err
	}
	core, err := edge.NewInflight(l, key, edge.InflightOptions[*http.Request]{
		Package: "httplimit", Thing: "request", Units: o.Units, Skip: o.Skip, MaxWait: o.MaxWait, Judges: o.Outcome != nil,
	})
	if err != nil {
		return nil, err
	}
	return &Inflight[K]{core: core, opts: o, badKey: newBadKey(o.KeyCode)}, nil
}

// outcome returns a request's outcome for an adaptive limit.
func (m *Inflight[K]) outcome(r *http.Request, w *watcher, returned bool) inflight.Outcome {
	final := w.sentOr(returned)
	status := w.blame(final)
	usual := usualOutcome(r, status)
	if !returned {
		usual = usualOutcome(r, http.StatusInternalServerError) // the response is incomplete, even after a status of success
	}
	if status != final && usual == inflight.Success { // a client's slow or missing body shows nothing about the load
		usual = inflight.Ignored
	}
	if usual == inflight.Success && isEventStream(w.Header()) { // the stream lasts as long as its client listens
		usual = inflight.Ignored
	}
	if m.opts.Outcome == nil {
		return usual
	}
	return m.opts.Outcome(r, status, usual)
}

func usualOutcome(r *http.Request, status int) inflight.Outcome {
	ctx := r.Context()
	err := ctx.Err()
	switch {
	case outcome.WasRefused(ctx):
		return inflight.Ignored
	case errors.Is(err, context.DeadlineExceeded):
		return inflight.Dropped
	case status == http.StatusSwitchingProtocols:
		return inflight.Ignored
	case err != nil:
		return inflight.Cancelled
	}
	return outcomeOf(status)
}

// isEventStream reports whether a response is a stream of server-sent events.
func isEventStream(h http.Header) bool {
	const stream = "text/event-stream"
	t := h.Get("Content-Type")
	return len(t) >= len(stream) && strings.EqualFold(t[:len(stream)], stream)
}

// outcomeOf returns the default outcome for a final status.
func outcomeOf(status int) inflight.Outcome {
	switch {
	case status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		return inflight.Dropped
	case status >= http.StatusInternalServerError:
		return inflight.Cancelled
	}
	return inflight.Success
}

// Wrap returns a handler that passes requests with a permit to next, and answers the others.
func (m *Inflight[K]) Wrap(next http.Handler) http.Handler {
	switch {
	case m == nil || m.core == nil:
		panic(optional.Zero("httplimit", "Inflight", "NewInflight"))
	case next == nil:
		panic(optional.Nil("httplimit: Inflight.Wrap: next"))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// Stats returns the counters.
func (m *Inflight[K]) Stats() InflightStats {
	if m == nil || m.core == nil {
		return InflightStats{}
	}
	return InflightStats(m.core.Stats())
}

func (m *Inflight[K]) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	permit, watched, why := m.core.Admit(r)
	switch {
	case why.Err != nil:
		m.refuse(w, r, why)
	case watched && m.core.Learns:
		m.work(w, r, permit, next)
	case watched && reachesHijacker(w):
		watched, writer := watch(w, r)
		watched.tenure = newTenure(permit.Release)
		defer watched.tenure.done()
		next.ServeHTTP(writer, r)
	default:
		defer permit.Release()
		next.ServeHTTP(w, r)
	}
}

// work serves the request, and gives the permit back in any case.
func (m *Inflight[K]) work(w http.ResponseWriter, r *http.Request, permit inflight.Permit, next http.Handler) {
	inner := r.WithContext(outcome.WatchRefusals(r.Context()))
	watched, writer := watch(w, inner)
	watched.body = watchBody(r, inner)
	if m.opts.Outcome == nil { // otherwise Outcome decides, at the end
		watched.permit = permit
	}
	var returned bool
	if reachesHijacker(w) {
		end := inflight.Ignored // used if Outcome panics
		watched.tenure = newTenure(func() { permit.Done(end) })
		defer watched.tenure.done()
		defer func() { end = m.outcome(inner, watched, returned) }()
	} else {
		defer permit.Release() // releases the permit if Outcome panics; otherwise it is the second call, and does nothing
		defer func() { permit.Done(m.outcome(inner, watched, returned)) }()
	}
	defer handBack(r, inner)
	next.ServeHTTP(writer, inner)
	returned = true
}

// refuse answers a request without a permit.
func (m *Inflight[K]) refuse(w http.ResponseWriter, r *http.Request, why edge.Refusal) {
	h, answer := w.Header(), internalError
	h.Set("Cache-Control", "no-store")
	switch why.Cause {
	case outcome.CauseLimited, outcome.CauseGone, outcome.CauseTableFull:
		answer = reducedCapacity
		h.Set("Retry-After", strconv.FormatInt(max(1, limitfields.Seconds(why.Wait)), 10))
	case outcome.CauseExceeds:
		answer = tooLarge
	case outcome.CauseBlocked:
		answer = blocked
	case outcome.CauseKey:
		answer = m.badKey
		challenge(h, m.opts.Challenge)
	}
	if why.ByClient() {
		blameClient(w)
	}
	if m.opts.OnRefused != nil {
		m.opts.OnRefused(w, r, why.Err)
		return
	}
	if protocol := protocolOf(r, m.opts.PlainHTTP); protocol != noRPC {
		writeRPC(w, r, protocol, why.Answer(r.Context(), keyCode(m.opts.KeyCode)))
		return
	}
	answer.write(w, r, new([2]string)[:])
}
