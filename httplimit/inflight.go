package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
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
	// client has caused as 400: see [Options].Settle. If nil, [InflightOutcome].
	Outcome func(r *http.Request, status int) inflight.Outcome

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
// key is missing or malformed with 400; other errors of the key function with 500.
type Inflight[K comparable] struct {
	limiter *inflight.Limiter[K]
	key     func(*http.Request) (K, error)
	opts    InflightOptions
	counts  [4]atomic.Uint64
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
// [ratelimit.SkipLayer] lets the request pass without a permit.
func NewInflight[K comparable](l *inflight.Limiter[K], key func(*http.Request) (K, error), opts *InflightOptions) (*Inflight[K], error) {
	if l == nil || key == nil {
		return nil, errors.New("httplimit: NewInflight needs a limiter and a key function, and got nil")
	}
	m := &Inflight[K]{limiter: l, key: key}
	if opts != nil {
		m.opts = *opts
	}
	if m.opts.MaxWait < 0 {
		return nil, fmt.Errorf("httplimit: InflightOptions.MaxWait is %v, want 0 or more", m.opts.MaxWait)
	}
	if m.opts.Outcome == nil {
		m.opts.Outcome = InflightOutcome
	}
	return m, nil
}

// InflightOutcome is how a request has ended for an adaptive limit: Dropped with a status of
// 500 or above and after the deadline of its context; Ignored if the client has left, and
// for a connection that was taken over (status 101), whose time is not the backend's;
// else Success.
func InflightOutcome(r *http.Request, status int) inflight.Outcome {
	err := r.Context().Err()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return inflight.Dropped
	case err != nil, status == http.StatusSwitchingProtocols:
		return inflight.Ignored
	case status >= http.StatusInternalServerError:
		return inflight.Dropped
	}
	return inflight.Success
}

// Wrap returns a handler that passes on to next what the limiter lets in, and answers the
// rest.
func (m *Inflight[K]) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// Indices of counts.
const (
	inflightSkipped = iota
	inflightAdmitted
	inflightShed
	inflightFailed
)

// Stats returns the counters. Each is exact; they are not read at one instant.
func (m *Inflight[K]) Stats() InflightStats {
	return InflightStats{
		Skipped:  m.counts[inflightSkipped].Load(),
		Admitted: m.counts[inflightAdmitted].Load(),
		Shed:     m.counts[inflightShed].Load(),
		Failed:   m.counts[inflightFailed].Load(),
	}
}

func (m *Inflight[K]) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.opts.Skip != nil && m.opts.Skip(r) {
		m.counts[inflightSkipped].Add(1)
		next.ServeHTTP(w, r)
		return
	}
	key, err := m.key(r)
	var permit inflight.Permit
	if err == nil {
		permit, err = m.acquire(r, key)
	}
	switch {
	case err == nil:
		m.counts[inflightAdmitted].Add(1)
		m.work(w, r, permit, next)
	case errors.Is(err, ratelimit.SkipLayer):
		m.counts[inflightSkipped].Add(1)
		next.ServeHTTP(w, r)
	default:
		m.refuse(w, r, key, err)
	}
}

func (m *Inflight[K]) acquire(r *http.Request, key K) (inflight.Permit, error) {
	ctx, units := r.Context(), 1
	if m.opts.Units != nil {
		units = m.opts.Units(r)
	}
	if m.opts.MaxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.opts.MaxWait)
		defer cancel()
	}
	return m.limiter.Acquire(ctx, key, units)
}

// work serves the request, and gives the permit back whatever becomes of it.
func (m *Inflight[K]) work(w http.ResponseWriter, r *http.Request, permit inflight.Permit, next http.Handler) {
	watched, writer := watch(w, r)
	status := http.StatusInternalServerError // of a handler that does not return
	released := false
	defer func() {
		if !released { // Outcome panicked
			permit.Release()
		}
	}()
	defer func() {
		permit.Done(m.opts.Outcome(r, watched.blame(status)))
		released = true
	}()
	next.ServeHTTP(writer, r)
	status = watched.final()
}

// refuse answers a request that got no permit.
func (m *Inflight[K]) refuse(w http.ResponseWriter, r *http.Request, key K, err error) {
	answer, retry, count := inflightAnswer(err)
	m.counts[count].Add(1)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if retry {
		h.Set("Retry-After", strconv.FormatInt(m.retryAfter(key), 10))
	}
	if errors.Is(err, ratelimit.ErrTableFull) || errors.Is(err, ratelimit.ErrNegativeCost) {
		blameClient(w) // that there is no room is not one client's fault
	}
	if m.opts.OnRefused != nil {
		m.opts.OnRefused(w, r, err)
		return
	}
	answer.write(w, r, new([2]string)[:])
}

// retryAfter is how long those waited who were served of late, in whole seconds.
func (m *Inflight[K]) retryAfter(key K) int64 {
	s, _ := m.limiter.Stats(key)
	return max(1, seconds(s.Wait))
}

var forbidden = newPlainProblem(http.StatusForbidden)

// inflightAnswer returns the answer to an error, whether to retry, and what to count.
func inflightAnswer(err error) (p *problem, retry bool, count int) {
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case is(ratelimit.ErrLimited), is(context.DeadlineExceeded), is(context.Canceled):
		return reducedCapacity, true, inflightShed
	case is(ratelimit.ErrTableFull):
		return reducedCapacity, true, inflightFailed
	case is(ratelimit.ErrExceedsLimit):
		return forbidden, false, inflightFailed
	case is(ErrMisconfigured):
		return internalError, false, inflightFailed
	case is(ErrNoKey), is(ErrMalformedKey), is(ratelimit.ErrInvalidKey):
		return badRequest, false, inflightFailed
	}
	return internalError, false, inflightFailed
}
