package grpclimit

import (
	"cmp"
	"context"

	"google.golang.org/grpc"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/limitfields"
	"github.com/weir-go/ratelimit/internal/optional"
)

// New returns interceptors that decide with the limiter. The error names the invalid option. If the
// limiter's keys are whole calls, it would limit nothing, and New returns an error: see [ratelimit.Map].
func New(limiter ratelimit.Limiter[*Call], opts *Options) (*Interceptor, error) {
	i := &Interceptor{opts: *cmp.Or(opts, new(Options))}
	err := i.opts.complete()
	if err == nil {
		i.core, err = edge.New(limiter, i.opts.core())
	}
	if err == nil && i.opts.LimitTrailers {
		err = i.views.Init(limiter, limitfields.Options{Package: "grpclimit", Unit: i.opts.QuotaUnit, Named: true})
	}
	if err != nil {
		return nil, err
	}
	return i, nil
}

// PerIP returns interceptors with one limit for each address: see [RemoteIP]. Behind a proxy use [New] with [ClientIP].
// PerIP logs one warning when a call comes from a private address and names another client in its metadata. PerIP
// tracks 65,536 addresses, and remembers as many others. It returns the errors of [ratelimit.New] and New.
func PerIP(limit ratelimit.Limit, opts *Options) (*Interceptor, error) {
	l, err := client.PerIP(limit, "New with ClientIP", cmp.Or(opts, new(Options)).Logger)
	if err != nil {
		return nil, err
	}
	return New(l, opts)
}

// UnaryServerInterceptor returns an interceptor that passes allowed calls to the handler and refuses the others. It panics if
// the Interceptor is zero. Outer interceptors must not send headers, because a client does not retry a denial after headers.
//
// A call is held if a leaky bucket delays it. If its context ends during the hold, it is not served.
// If its deadline is before its turn, it is denied at once. In both cases its charge is given back,
// except by a leaky bucket in a [ratelimit.Map]: use [PerIP], or [ratelimit.All] with one layer.
func (i *Interceptor) UnaryServerInterceptor() grpc.UnaryServerInterceptor {
	i.mustBeMade()
	if i.permits != nil {
		return i.permits.unary
	}
	return i.unary
}

// StreamServerInterceptor is UnaryServerInterceptor for streams. A stream is charged
// when it opens, and with [Options].ChargeMessages for each received message.
func (i *Interceptor) StreamServerInterceptor() grpc.StreamServerInterceptor {
	i.mustBeMade()
	if i.permits != nil {
		return i.permits.stream
	}
	return i.stream
}

func (i *Interceptor) mustBeMade() {
	if i == nil || i.core == nil && i.permits == nil {
		panic(optional.Zero("grpclimit", "Interceptor", "New or PerIP"))
	}
}

// Interceptor limits a server's calls. Make one with [New], [PerIP] or [NewInflight]. It is safe for concurrent use.
type Interceptor struct {
	core  *edge.Core[*Call]
	opts  Options
	views limitfields.Views // for Options.LimitTrailers

	permits permits // set by NewInflight; then all other fields are zero
}

// permits limits how many calls are served at the same time.
type permits interface {
	unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error)
	stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error
	stats() edge.Stats
}

// event is an [Event] in the form of package edge.
type event = edge.Event[*Call]

// public returns an event in the form for the user's functions.
func public(e event) Event {
	return Event{Call: e.Request, Cost: e.Cost, Decision: e.Decision, Err: e.Err, Outcome: httplimit.Outcome(e.Outcome)}
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

// Event is one decision. It is valid only until the function that receives it returns.
type Event struct {
	// Call is the call. For a decision on a message, Call.Request is the message.
	Call     *Call
	Cost     int
	Decision ratelimit.Decision
	// Err states why the limiter could not decide. It is nil if the call is allowed or denied.
	Err     error
	Outcome httplimit.Outcome
}
