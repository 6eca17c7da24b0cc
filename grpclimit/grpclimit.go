package grpclimit

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"google.golang.org/grpc"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/delays"
	"github.com/weir-go/ratelimit/internal/spread"
)

// New returns interceptors that decide with the limiter. The error names the option and
// what is wrong with it.
//
// A limiter whose keys are whole calls limits nothing, and is refused: see
// [ratelimit.Map]. In answers, a limit without a name is called "default" (see
// [ratelimit.Limit.Named]).
func New(limiter ratelimit.Limiter[*Call], opts *Options) (*Interceptor, error) {
	if err := checkLimiter(limiter); err != nil {
		return nil, err
	}
	i := &Interceptor{limiter: limiter, seed: spread.New()}
	if opts != nil {
		i.opts = *opts
	}
	if err := i.opts.validate(); err != nil {
		return nil, err
	}
	i.opts.defaults()
	if err := i.findReserver(); err != nil {
		return nil, err
	}
	return i, nil
}

// PerIP returns interceptors with one limit for each client address: the connection's, see
// [RemoteIP], an IPv6 address cut to its /64. Behind a proxy all clients would share one
// limit: use [New] with [ClientIP] or [HeaderIP] there. The errors are those of
// [ratelimit.New] and New.
func PerIP(limit ratelimit.Limit, opts *Options) (*Interceptor, error) {
	l, err := ratelimit.New[netip.Addr](limit, nil)
	if err != nil {
		return nil, err
	}
	if limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
		return New(ratelimit.Map(l, RemoteIP), opts)
	}
	layered, err := ratelimit.All(ratelimit.By(l, RemoteIP)) // which can give a delayed call's charge back
	if err != nil {
		return nil, err
	}
	return New(layered, opts)
}

// Must returns the interceptors, or panics if there is an error.
func Must(i *Interceptor, err error) *Interceptor {
	if err != nil {
		panic(err)
	}
	return i
}

// checkLimiter refuses what can only be a mistake.
func checkLimiter(limiter ratelimit.Limiter[*Call]) error {
	if v := reflect.ValueOf(limiter); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return errors.New("grpclimit: New needs a limiter, and got nil")
	}
	if _, ok := limiter.(*ratelimit.Keyed[*Call]); ok {
		return errors.New("grpclimit: this limiter's key is the call itself, so that each call has a budget of its own: " +
			"give its key to ratelimit.Map or ratelimit.By")
	}
	return nil
}

// century is the time in which every limit has regained its whole capacity.
const century = 876_600 * time.Hour

// findReserver finds out which charges are to be reserved. Where a Reserver books ahead,
// Reserve cannot delay a call as Take does, so that only Settle asks it for what may be
// delayed.
func (i *Interceptor) findReserver() error {
	settles := i.opts.Settle != nil
	r, ok := i.limiter.(ratelimit.Reserver[*Call])
	switch {
	case !ok && settles:
		return fmt.Errorf("grpclimit: Options.Settle needs a ratelimit.Reserver, and %T is none", i.limiter)
	case !ok:
		return nil
	}
	i.reserver = r
	ahead, may := delays.BooksAhead(r), delays.May(r)
	if !ahead {
		i.maxDelay = century // this is as far as Take goes
	}
	holds := may && !ahead
	i.reserves = reserves{
		calls:    settles || holds,
		messages: holds,
		both:     i.opts.ChargeMessages && i.opts.Cost == nil && !(may && ahead),
	}
	return nil
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
	if i == nil || i.limiter == nil {
		panic("grpclimit: this Interceptor was not made by New: it has no limiter")
	}
}
