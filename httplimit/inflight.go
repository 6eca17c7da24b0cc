package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/refused"
	"github.com/weir-go/ratelimit/internal/told"
)

// InflightOptions are the settings of [NewInflight] besides the limiter and the key. Nil
// and the zero InflightOptions mean the defaults.
type InflightOptions struct {
	// Units is how many units of the limiter a request takes. Below zero is an error, and
	// 0 always passes. If nil, 1.
	Units func(r *http.Request) int

	// Skip says which requests are left out, such as health checks. If nil, none.
	Skip func(r *http.Request) bool

	// MaxWait is how long a request may wait in its key's queue, if the limiter has one
	// ([inflight.Options].MaxQueue). If zero, as long as its context allows.
	MaxWait time.Duration

	// Outcome says what an adaptive limit is to learn from a request: its status, and
	// its context. A handler that panics counts as status 500, and a server error that the
	// client has caused as 400: see [Options].Settle. If nil, [InflightOutcome], which is asked
	// only if the limiter adapts: with a fixed limit a request costs no allocation.
	Outcome func(r *http.Request, status int, usual inflight.Outcome) inflight.Outcome

	// KeyCode is the status of a request whose key is missing or malformed, such as
	// [http.StatusUnauthorized], from 400 to 499. If zero, [http.StatusBadRequest].
	KeyCode int

	// OnRefused answers a request that was refused because of the error. Header fields
	// are set already, Retry-After among them if it makes sense; the status is not. If nil,
	// a problem document: see [Inflight].
	OnRefused func(w http.ResponseWriter, r *http.Request, err error)
}

// Inflight is middleware that limits how many requests are served at the same time. Make
// one with [NewInflight]. It is safe for concurrent use, and may wrap any number of
// handlers, which then share its limits.
//
// A request that finds no room is answered with 503, a problem document of the type
// temporary-reduced-capacity and a Retry-After: the key's recent wait, in whole seconds,
// and 1 at least. So is one for which the table of keys is full. One that needs more
// units than there ever are is answered with 403 and should not be repeated; one whose
// key is missing or malformed with InflightOptions.KeyCode; other errors of the key function with 500.
type Inflight[K comparable] struct {
	core   *edge.Inflight[*http.Request, K]
	opts   InflightOptions
	badKey *problem
	learns bool // somebody wants to know how requests end
}

// InflightStats count requests, each under what was done with it.
type InflightStats struct {
	Skipped  uint64 // left out by InflightOptions.Skip, or by a key function with ratelimit.SkipLayer
	Admitted uint64 // passed on to the handler
	Shed     uint64 // no room, or the client left while it waited
	Failed   uint64 // could not be decided, or can never pass
}

// NewInflight returns middleware that takes a permit of the limiter for each request, and
// gives it back when the handler has returned. The key function is one of this package,
// such as [RemoteIP] or [PathValue], or one of your own; one that returns
// [ratelimit.SkipLayer] lets the request pass without a permit. A limiter whose keys are whole
// requests limits nothing, and is refused.
//
// The limiter's limit is that of one key. For a limit of the whole server, set [inflight.Options].Total.
func NewInflight[K comparable](l *inflight.Limiter[K], key func(*http.Request) (K, error), opts *InflightOptions) (*Inflight[K], error) {
	m := new(Inflight[K])
	if opts != nil {
		m.opts = *opts
	}
	core, err := edge.NewInflight(l, key, edge.InflightOptions[*http.Request]{
		Package: "httplimit", Thing: "request", Units: m.opts.Units, Skip: m.opts.Skip, MaxWait: m.opts.MaxWait,
	})
	if err != nil {
		return nil, err
	}
	if !isKeyCode(m.opts.KeyCode) {
		return nil, fmt.Errorf("httplimit: InflightOptions.KeyCode is %d, want 400 to 499, or 0 for 400", m.opts.KeyCode)
	}
	m.core, m.learns = core, m.opts.Outcome != nil || core.Adapts()
	m.badKey = newBadKey(m.opts.KeyCode)
	return m, nil
}

// outcome returns what an adaptive limit is to learn from a request.
func (m *Inflight[K]) outcome(r *http.Request, status int) inflight.Outcome {
	usual := usualOutcome(r, status)
	if m.opts.Outcome == nil {
		return usual
	}
	return m.opts.Outcome(r, status, usual)
}

func usualOutcome(r *http.Request, status int) inflight.Outcome {
	ctx := r.Context()
	err := ctx.Err()
	switch {
	case refused.Is(ctx):
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

// outcomeOf is what a final status says about load.
func outcomeOf(status int) inflight.Outcome {
	switch {
	case status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		return inflight.Dropped
	case status >= http.StatusInternalServerError:
		return inflight.Cancelled
	}
	return inflight.Success
}

// Wrap returns a handler that passes on to next what the limiter lets in, and answers the
// rest.
func (m *Inflight[K]) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (m *Inflight[K]) Stats() InflightStats { return InflightStats(m.core.Stats()) }

func (m *Inflight[K]) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	permit, watched, why := m.core.Admit(r)
	switch {
	case why.Kind != 0:
		m.refuse(w, r, why)
	case watched && m.learns:
		m.work(w, r, permit, next)
	default:
		defer permit.Release()
		next.ServeHTTP(w, r)
	}
}

// work serves the request, and gives the permit back whatever becomes of it.
func (m *Inflight[K]) work(w http.ResponseWriter, r *http.Request, permit inflight.Permit, next http.Handler) {
	inner := r.WithContext(refused.Watch(r.Context()))
	watched, writer := watch(w, inner)
	status := http.StatusInternalServerError // of a handler that does not return
	defer permit.Release()                   // if Outcome panics; else it is the second time, and does nothing
	defer func() { permit.Done(m.outcome(inner, watched.blame(status))) }()
	defer handBack(r, inner)
	next.ServeHTTP(writer, inner)
	status = watched.final()
}

// refuse answers a request that got no permit.
func (m *Inflight[K]) refuse(w http.ResponseWriter, r *http.Request, why edge.Refusal) {
	h, answer := w.Header(), internalError
	h.Set("Cache-Control", "no-store")
	switch why.Kind {
	case edge.NoRoom, edge.Left, edge.TableFull:
		answer = reducedCapacity
		h.Set("Retry-After", strconv.FormatInt(max(1, told.Seconds(why.Wait)), 10))
	case edge.TooLarge:
		answer = tooLarge
	case edge.Blocked:
		answer = blocked
	case edge.BadKey:
		answer = m.badKey
	}
	if why.ByClient() {
		blameClient(w)
	}
	if m.opts.OnRefused != nil {
		m.opts.OnRefused(w, r, why.Err)
		return
	}
	if protocol := rpcOf(r); protocol != noRPC {
		writeRPC(w, r, protocol, why.Answer(r.Context(), keyCode(m.opts.KeyCode)))
		return
	}
	answer.write(w, r, new([2]string)[:])
}
