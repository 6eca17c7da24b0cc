package connectlimit

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/limitfields"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// Interceptor limits handlers' calls. Make one with [New], [PerIP] or [NewInflight], and pass
// it to [connect.WithInterceptors]. It is safe for concurrent use. It lets clients' calls pass.
type Interceptor struct {
	core  *edge.Core[*Call]
	opts  Options
	views limitfields.Views // for Options.LimitFields

	permits permits // set by NewInflight; then all other fields are zero
}

// permits limits how many calls are served at the same time.
type permits interface {
	unary(next connect.UnaryFunc) connect.UnaryFunc
	streaming(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc
	stats() edge.Stats
}

var _ connect.Interceptor = (*Interceptor)(nil)

type event = edge.Event[*Call]

// public returns an event in the form for the user's functions.
func public(e event) Event {
	return Event{Call: e.Request, Cost: e.Cost, Decision: e.Decision, Err: e.Err, Outcome: httplimit.Outcome(e.Outcome)}
}

// New returns an interceptor that decides with the limiter. The error names the invalid option. If the
// limiter's keys are whole calls, it would limit nothing, and New returns an error: see [ratelimit.Map].
func New(limiter ratelimit.Limiter[*Call], opts *Options) (*Interceptor, error) {
	i := &Interceptor{opts: *cmp.Or(opts, new(Options))}
	err := i.opts.complete()
	if err == nil {
		i.core, err = edge.New(limiter, i.opts.core())
	}
	if err == nil && i.opts.LimitFields {
		err = i.views.Init(limiter, limitfields.Options{Package: "connectlimit", Unit: i.opts.QuotaUnit, Named: true})
	}
	if err != nil {
		return nil, err
	}
	return i, nil
}

// PerIP returns an interceptor with one limit for each address: see [RemoteIP]. Behind a proxy use [New] with
// [ClientIP]. PerIP logs one warning when a call comes from a private address and names another client in a header
// field. PerIP tracks 65,536 addresses, and remembers as many others. It returns the errors of [ratelimit.New] and New.
func PerIP(limit ratelimit.Limit, opts *Options) (*Interceptor, error) {
	l, err := client.PerIP(limit, "New with ClientIP", cmp.Or(opts, new(Options)).Logger)
	if err != nil {
		return nil, err
	}
	return New(l, opts)
}

// Stats returns the counters.
func (i *Interceptor) Stats() httplimit.Stats {
	switch {
	case i == nil || i.core == nil && i.permits == nil:
		return httplimit.Stats{}
	case i.permits != nil:
		return httplimit.Stats(i.permits.stats())
	}
	return httplimit.Stats(i.core.Stats())
}

// WrapUnary implements [connect.Interceptor]. It panics if the
// Interceptor is zero. It holds a call if a leaky bucket delays it.
func (i *Interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	i.mustBeMade()
	if i.permits != nil {
		return i.permits.unary(next)
	}
	return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
		spec := req.Spec()
		if spec.IsClient {
			return next(ctx, req)
		}
		err = i.serve(unaryCall(ctx, req), nil, func(ctx context.Context, e *event) (any, error) {
			own, ctx := i.fields(ctx, e)
			if resp, err = next(ctx, req); err != nil || resp == nil {
				return nil, err
			}
			own.add(resp.Header())
			return resp.Any(), nil
		})
		return resp, err
	}
}

func unaryCall(ctx context.Context, req connect.AnyRequest) *Call {
	spec := req.Spec()
	return &Call{Procedure: spec.Procedure, Request: req.Any(), Header: req.Header(), Peer: req.Peer(), StreamType: spec.StreamType, ctx: ctx}
}

func streamCall(ctx context.Context, conn connect.StreamingHandlerConn) *Call {
	spec := conn.Spec()
	return &Call{Procedure: spec.Procedure, Header: conn.RequestHeader(), Peer: conn.Peer(), StreamType: spec.StreamType, ctx: ctx}
}

// WrapStreamingClient returns next.
func (i *Interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler is WrapUnary for streams. A stream is charged when it opens.
func (i *Interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	i.mustBeMade()
	if i.permits != nil {
		return i.permits.streaming(next)
	}
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		c := streamCall(ctx, conn)
		if i.opts.SettleResponse == nil {
			return i.serve(c, nil, func(ctx context.Context, _ *event) (any, error) {
				return nil, next(ctx, conn)
			})
		}
		s := &countedConn{StreamingHandlerConn: conn}
		return i.serve(c, s, func(ctx context.Context, _ *event) (any, error) {
			return nil, next(ctx, s)
		})
	}
}

// countedConn is a stream. It records the messages it sends. Its handler sends one message after another.
type countedConn struct {
	connect.StreamingHandlerConn

	mu       sync.Mutex // guards the fields below
	messages int        // messages sent
	last     any        // the last message sent
}

// Send sends a message.
func (s *countedConn) Send(m any) error {
	err := s.StreamingHandlerConn.Send(m)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.messages++
		s.last = m
	}
	return err
}

// sent counts the sent messages, and returns the last one.
func (s *countedConn) sent() (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages, s.last
}

// RefuseHeld refuses the held calls, and each later call instead of holding it. They end as if their deadlines
// were too early, and their charges are given back. Calls are still served if they can pass at once. Pass it to
// [http.Server.RegisterOnShutdown], because [http.Server.Shutdown] waits for held calls. If several servers share
// an Interceptor, it holds no more calls for any of them. If [NewInflight] made the Interceptor, it does nothing.
func (i *Interceptor) RefuseHeld() {
	if i != nil && i.core != nil {
		i.core.RefuseHeld()
	}
}

func (i *Interceptor) mustBeMade() {
	if i == nil || i.core == nil && i.permits == nil {
		panic(optional.Zero("connectlimit", "Interceptor", "New or PerIP"))
	}
}

// serve calls the handler if the call may be served. It then settles the charge, even if
// the handler panics. s is nil for a unary call. The event is nil for an exempt call.
func (i *Interceptor) serve(c *Call, s *countedConn, handler func(context.Context, *event) (any, error)) (err error) {
	if i.core.Skips(c) {
		_, err = handler(c.Context(), nil)
		return err
	}
	e := i.core.Event(c)
	charge := i.core.Charge(&e, i.core.Decide(&e, i.core.Settles))
	defer charge.End()
	if err = i.pass(&e); err != nil {
		return err
	}
	inner := edge.Inside(charge.Serve(c.Context()))
	if !i.core.Settles {
		_, err = handler(inner, &e)
		i.passedOn(inner, &e, charge)
		return err
	}
	got := Response{Err: errPanicked}
	defer charge.Settle(func(cost int) int {
		if s != nil {
			got.Sent, got.Message = s.sent()
		} else if got.Message != nil {
			got.Sent = 1
		}
		c.answered, c.refused = got.Sent > 0, edge.WasRefused(inner)
		return i.opts.SettleResponse(c, got, cost)
	})
	got.Message, got.Err = handler(inner, &e)
	if !edge.WasRefused(inner) {
		edge.MarkServed(c.Context())
	}
	return got.Err
}

// passedOn gives a call's charge back if an inner interceptor has refused the call.
func (i *Interceptor) passedOn(inner context.Context, e *event, charge *edge.Charge[*Call]) {
	if edge.WasRefused(inner) {
		charge.Refused(e)
		return
	}
	edge.MarkServed(inner) // outer interceptors and middlewares read this mark, too
}

// errPanicked stands for a panicking handler's error.
var errPanicked error = connect.NewError(connect.CodeInternal, errors.New("the handler has panicked"))

// pass holds the call for as long as it is delayed, and reports the decision.
// If the call may not be served, pass returns the error for the client.
func (i *Interceptor) pass(e *event) error {
	if !i.opts.Shadow {
		i.core.Hold(e)
	}
	i.core.Report(e)
	if i.opts.Shadow || e.Outcome == edge.Allowed || e.Outcome == edge.FailedOpen {
		return nil
	}
	ctx := e.Request.Context()
	outcome.MarkRefused(ctx)
	edge.MarkRefused(ctx, e.Cause())
	if e.Decision.Allowed && e.Outcome == edge.Rejected { // the client has left during the hold
		return errorOf(rpcstatus.Gone(ctx), outcome.CauseGone, "")
	}
	answer := errorOf(i.core.Answer(e, rpcstatus.Code(i.opts.KeyCode)), e.Cause(), i.opts.Challenge)
	own, _ := i.fields(ctx, e)
	own.add(answer.Meta())
	if i.opts.OnRefused != nil {
		if other := i.opts.OnRefused(public(*e), answer); other != nil {
			answer = other
		}
	}
	return answer
}

// limitFields are the values of RateLimit-Policy and RateLimit. A field with the value "" is not sent.
type limitFields struct{ policies, standing string }

// fields returns an event's fields, and the context for inner interceptors. It returns no fields for an exempt call.
func (i *Interceptor) fields(ctx context.Context, e *event) (limitFields, context.Context) {
	if e == nil || !i.opts.LimitFields || i.opts.Shadow || e.Outcome != edge.Allowed && e.Outcome != edge.Denied && e.Outcome != edge.Exceeds {
		return limitFields{}, ctx
	}
	policies, standing, inner := i.views.Fields(ctx, &e.Decision, e.Outcome == edge.Exceeds)
	return limitFields{policies, standing}, inner
}

// add adds the fields in front of inner interceptors' fields. These are already set.
func (f limitFields) add(h http.Header) {
	for name, value := range map[string]string{"Ratelimit-Policy": f.policies, "Ratelimit": f.standing} {
		if value != "" {
			h[name] = append([]string{value}, h[name]...)
		}
	}
}

// errorOf returns an answer in connect-go's form. It adds the challenge,
// if there is one, to the answer to a call without a valid key.
func errorOf(a rpcstatus.Answer, cause outcome.Cause, challenge string) *connect.Error {
	err := connect.NewError(connect.Code(a.Code), errors.New(a.Message))
	details, n := a.Details(new([rpcstatus.RetryInfoSize]byte))
	for _, d := range details[:n] {
		if detail, bad := connect.NewErrorDetail(&anypb.Any{TypeUrl: d.URL, Value: d.Value}); bad == nil {
			err.AddDetail(detail)
		}
	}
	if pushback := a.Pushback(); pushback != "" {
		err.Meta().Set(rpcstatus.PushbackKey, pushback)
	}
	if a.Wait > 0 {
		err.Meta().Set("Retry-After", strconv.FormatInt(int64((a.Wait-1)/time.Second)+1, 10))
	}
	if cause == outcome.CauseKey && challenge != "" {
		err.Meta().Set("WWW-Authenticate", challenge)
	}
	return err
}
