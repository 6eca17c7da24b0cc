package grpclimit

import (
	"google.golang.org/grpc"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/told"
)

// New returns interceptors that decide with the limiter. The error names the option and
// what is wrong with it.
//
// A limiter whose keys are whole calls limits nothing, and is refused: see
// [ratelimit.Map]. In answers, a limit without a name is called "default" (see
// [ratelimit.Limit.Named]).
func New(limiter ratelimit.Limiter[*Call], opts *Options) (*Interceptor, error) {
	if err := edge.Check("grpclimit", "New", "call", limiter); err != nil {
		return nil, err
	}
	i := new(Interceptor)
	if opts != nil {
		i.opts = *opts
	}
	if err := i.opts.validate(); err != nil {
		return nil, err
	}
	i.opts.defaults()
	core, err := edge.New(limiter, i.opts.core())
	if err != nil {
		return nil, err
	}
	if i.opts.LimitTrailers {
		if err := i.views.Init(limiter, told.Options{Package: "grpclimit", Unit: i.opts.QuotaUnit, Named: true}); err != nil {
			return nil, err
		}
	}
	i.core = core
	return i, nil
}

// PerIP returns interceptors with one limit for each client address: the connection's, see
// [RemoteIP], an IPv6 address cut to its /64. Behind a proxy all clients would share one
// limit: use [New] with [ClientIP] there. The errors are those of
// [ratelimit.New] and New. It tracks 65,536 addresses, and remembers what as many others have spent:
// see [ratelimit.Options] under Remember.
func PerIP(limit ratelimit.Limit, opts *Options) (*Interceptor, error) {
	l, err := edge.PerKey(limit, RemoteIP)
	if err != nil {
		return nil, err
	}
	return New(l, opts)
}

// UnaryServerInterceptor returns what passes on to handlers the unary calls that the
// limiter allows, and answers the others. It is for [grpc.ChainUnaryInterceptor]. It panics
// if the Interceptor was not made by [New].
//
// A call that a leaky bucket delays is held for that long. If its context ends before that,
// because the client has gone or its deadline has passed, it is not served. If it has a
// deadline that comes before the delay ends, it is denied at once, with
// RESOURCE_EXHAUSTED. In both cases its charge is given back, if the limiter is a
// [ratelimit.Layered] or another Reserver whose method BooksAhead() bool reports false. It
// stays charged with a leaky bucket given by [ratelimit.Map]: clients with short deadlines
// can fill its queue with calls that are never served. Give a [ratelimit.All] of that one
// layer instead, as [PerIP] does. (A limiter shows New by its method Limits that it has leaky
// buckets. If SetLimit turns another limit into one later, charges stay as well.)
//
// Interceptors before this one must not send or set headers: a client does not retry a
// denial that comes with headers.
func (i *Interceptor) UnaryServerInterceptor() grpc.UnaryServerInterceptor {
	i.mustBeMade()
	return i.unary
}

// StreamServerInterceptor is UnaryServerInterceptor for streams, for
// [grpc.ChainStreamInterceptor]. A stream is charged when it opens, and by
// [Options].ChargeMessages for each message that it receives.
func (i *Interceptor) StreamServerInterceptor() grpc.StreamServerInterceptor {
	i.mustBeMade()
	return i.stream
}

func (i *Interceptor) mustBeMade() {
	if i == nil || i.core == nil {
		panic("grpclimit: this Interceptor was not made by New: it has no limiter")
	}
}

// Interceptor holds the calls of servers to a limiter. Make one with [New] or [PerIP]. It
// is safe for concurrent use, and may serve any number of servers, which then share its
// limits. The zero Interceptor cannot be used: its interceptors panic.
type Interceptor struct {
	core  *edge.Core[*Call]
	opts  Options
	views told.Views // of Options.LimitTrailers
}

// event is an [Event] as package edge has it.
type event = edge.Event[*Call]

// public returns an event as functions of users get it.
func public(e event) Event {
	return Event{Call: e.Request, Cost: e.Cost, Decision: e.Decision, Err: e.Err, Outcome: httplimit.Outcome(e.Outcome)}
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (i *Interceptor) Stats() httplimit.Stats {
	if i.core == nil {
		return httplimit.Stats{}
	}
	return httplimit.Stats(i.core.Stats())
}

// Event is one decision. It is valid during the call that gets it.
type Event struct {
	// Call is the call as the interceptor got it; in decisions on messages, with the
	// message in Call.Request.
	Call *Call
	// Cost is what the call or message costs.
	Cost int
	// Decision is the limiter's answer. Its field Degraded reports a decision that was
	// taken without the shared store.
	Decision ratelimit.Decision
	// Err is the limiter's error, nil if the call is allowed or denied.
	Err error
	// Outcome is what the interceptor does with the call.
	Outcome httplimit.Outcome
}
