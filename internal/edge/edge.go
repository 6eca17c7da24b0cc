// Package edge implements the decision path of the HTTP, gRPC and Connect middleware: decide, report, refund. A request is an
// *http.Request, a *grpclimit.Call or a *connectlimit.Call.
package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Request is a request for a Core to decide on.
type Request interface {
	comparable
	Context() context.Context
}

// Event is one decision: see httplimit.Event.
type Event[R Request] struct {
	Request  R
	Cost     int
	Decision ratelimit.Decision
	Err      error
	Outcome  Outcome

	held *ratelimit.Reservation // the reservation, or nil
	at   time.Time              // the time of a charge without a reservation
}

// Cause returns the cause of the event's error.
func (e *Event[R]) Cause() outcome.Cause { return outcome.CauseFor(e.Request.Context(), e.Err) }

// Options are the options of all middlewares.
type Options[R Request] struct {
	Package string // the prefix of errors and log lines
	Thing   string // the word for a request in errors and log lines

	Cost     func(R) int  // if nil, each request costs 1
	Skip     func(R) bool // if nil, no request is skipped
	Settles  bool         // whether a charge is settled when the handler has returned
	FailOpen bool
	Shadow   bool // whether denied requests go on

	// the maximum time for which a denied request is held until it passes;
	// if 0, requests are held only for the delay of a leaky bucket
	MaxHold time.Duration

	// TooLate reports whether a request can no longer be served after a delay. Such a request is denied.
	TooLate func(r R, delay time.Duration) bool

	Jitter   time.Duration
	JitterBy func(R) string

	OnDecision func(Event[R])   // may be nil
	About      func(R) []any    // returns attributes of a request for log lines; may be nil
	Logger     *slog.Logger     // if nil, slog.Default
	Now        func() time.Time // if nil, time.Now
}

// Core decides on requests, for all protocols. It is safe for concurrent use.
type Core[R Request] struct {
	Options[R]
	limiter  ratelimit.Limiter[R]
	reserver ratelimit.Reserver[R] // the limiter as a Reserver, or nil
	maxDelay time.Duration         // its reservations' maxDelay

	holds   bool        // whether a request may be held and then not served: its charge must be undone
	returns bool        // whether Reserve decides like Take, and its charge can be given back
	adjusts bool        // whether the limiter has an Adjust
	nests   atomic.Bool // whether an inner limiter has refused a request charged here
	ends    atomic.Bool // whether a limit holds units until the request ends

	refusing context.Context // ends when RefuseHeld is called
	refuse   context.CancelFunc

	counts    [outcomes]atomic.Uint64
	degraded  atomic.Uint64
	unsettled atomic.Uint64
	logs      [outcome.Causes]throttledLog
	settleLog throttledLog
	seed      jitterSeed                                    // the jitter's seed
	drops     bool                                          // whether no request is used after its decision
	texts     Recent[ratelimit.Limit, *rpcstatus.LimitText] // descriptions of denying limits
}

// century is the time for every limit to regain its whole capacity.
const century = 876_600 * time.Hour

// New checks the limiter and the options, and determines which charges use Reserve. If a limiter books ahead, its Reserve
// cannot delay a request as its Take does. So if requests may be delayed, they use Reserve only if charges are settled.
func New[R Request](limiter ratelimit.Limiter[R], o Options[R]) (*Core[R], error) {
	err := cmp.Or(
		Check(o.Package, "New", o.Thing, limiter),
		optional.NotNegative(o.Package+": Options.MaxHold", o.MaxHold, "none"),
		optional.NotNegative(o.Package+": Options.Jitter", o.Jitter, "none"),
	)
	if err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Core[R]{Options: o, limiter: limiter, seed: newJitterSeed()}
	c.refusing, c.refuse = context.WithCancel(context.Background())
	_, c.adjusts = limiter.(ratelimit.Adjuster[R])
	c.texts.Clear()
	switch l := limiter.(type) {
	case *ratelimit.Layered[R]:
		c.drops = true
	case interface{ DropsRequests() bool }:
		c.drops = l.DropsRequests()
	}
	r, ok := limiter.(ratelimit.Reserver[R])
	switch {
	case !ok && o.Settles:
		return nil, fmt.Errorf("%s: Options.Settle needs a ratelimit.Reserver, and %T is none", o.Package, limiter)
	case !ok && o.MaxHold > 0:
		return nil, fmt.Errorf("%s: Options.MaxHold is %v, which needs a ratelimit.Reserver, and %T is none", o.Package, o.MaxHold, limiter)
	case !ok:
		return c, nil
	}
	is := ratelimit.Describe(r)
	ahead, may := is.BooksAhead, mayDelay(r)
	if o.MaxHold > 0 && !ahead && !may {
		return nil, fmt.Errorf("%s: Options.MaxHold is %v, and %T books nothing ahead, so that no request would be held", o.Package, o.MaxHold, limiter)
	}
	c.reserver, c.holds, c.returns = r, may && !ahead || o.MaxHold > 0, !may || !ahead
	c.ends.Store(is.Holds)
	switch {
	case o.MaxHold > 0:
		c.maxDelay = o.MaxHold
	case !ahead:
		c.maxDelay = century // Take may delay a request for up to a century
	}
	return c, nil
}

// Check returns an error for a nil limiter, or for one whose key is
// the whole request. constructor is the name of the called function.
func Check[R Request](pkg, constructor, thing string, limiter ratelimit.Limiter[R]) error {
	if optional.IsNil(limiter) {
		return optional.Nil(pkg + ": " + constructor + ": limiter")
	}
	if _, ok := limiter.(*ratelimit.Keyed[R]); ok {
		return wholeKey(pkg, thing, "give its key to ratelimit.Map or ratelimit.By")
	}
	return nil
}

// CompleteKeyCode checks the code for the answer to a call without a valid key. It replaces 0 by InvalidArgument.
func CompleteKeyCode[C ~uint32](options string, keyCode *C) error {
	if *keyCode > C(rpcstatus.Unauthenticated) {
		return fmt.Errorf("%s.KeyCode is %d, which does not exist", options, *keyCode)
	}
	*keyCode = cmp.Or(*keyCode, C(rpcstatus.InvalidArgument))
	return nil
}

// CompleteChallenge checks the WWW-Authenticate field for the answer to a request without a valid key. It replaces
// an empty field by "Bearer". A 401 must have the field (RFC 9110, section 15.5.2), and other answers have none.
func CompleteChallenge[C comparable](options string, keyCode, unauthenticated C, challenge *string) error {
	switch {
	case keyCode == unauthenticated:
		*challenge = cmp.Or(*challenge, "Bearer")
	case *challenge != "":
		return fmt.Errorf("%s.Challenge is given, and KeyCode is %v, want %v", options, keyCode, unauthenticated)
	}
	for i, c := range *challenge {
		if c < ' ' || c > '~' {
			return fmt.Errorf("%s.Challenge has %q at position %d, which a header field cannot carry", options, c, i)
		}
	}
	return nil
}

// wholeKey returns the error for a limiter whose key is the whole request.
// Such a limiter never denies, because no two requests have the same key.
func wholeKey(pkg, thing, instead string) error {
	return fmt.Errorf("%s: this limiter's key is the %s itself, so that each %s has a budget of its own: %s", pkg, thing, thing, instead)
}

// tracked is the maximum number of keys that PerKey tracks. PerKey remembers
// as many others. The number is bounded because strangers choose the keys.
const tracked = 1 << 16

// PerKey returns a limiter with one budget for each key. For a leaky bucket it returns
// a stack of one layer, because a stack can give back a delayed request's charge.
func PerKey[R Request, K comparable](limit ratelimit.Limit, key func(R) (K, error)) (ratelimit.Limiter[R], error) {
	l, err := ratelimit.New(limit, &ratelimit.Options[K]{MaxKeys: tracked, Remember: tracked})
	switch {
	case err != nil:
		return nil, err
	case limit.Algorithm == ratelimit.AlgorithmLeakyBucket:
		return ratelimit.All(ratelimit.By(l, key))
	}
	return ratelimit.Map(l, key), nil
}

// DropsRequests reports whether the caller may reuse a request's memory after its answer. It may not if the
// limiter may continue with the request after its caller has left, as a limiter of package failover does.
func (c *Core[R]) DropsRequests() bool { return c.drops }

// Skips reports whether a request is exempt, and counts exempt requests.
func (c *Core[R]) Skips(r R) bool {
	if c.Skip == nil || !c.Skip(r) {
		return false
	}
	c.counts[Skipped].Add(1)
	return true
}

// Event returns a request's event, with the request's cost.
func (c *Core[R]) Event(r R) Event[R] {
	e := Event[R]{Request: r, Cost: 1}
	if c.Cost != nil {
		e.Cost = c.Cost(r)
	}
	return e
}

// Decide lets the limiter decide on the request. It returns nil if nothing was charged, or if the charge stays. Without
// a settlement, the reservation only serves to give back the charge if the request is held and then not served.
func (c *Core[R]) Decide(e *Event[R], settles bool) *ratelimit.Reservation {
	switch {
	case e.Cost < 0 && c.Cost != nil:
		e.Err, e.Outcome = badCost{c.Package, c.Thing, e.Cost}, Rejected
		return nil
	case settles || c.holds || c.ends.Load():
		return c.reserve(e.Request.Context(), e)
	case c.returns && c.nests.Load():
		return c.reserve(new(optional.Passing).From(e.Request.Context()), e)
	}
	e.at = time.Now()
	e.Decision, e.Err = c.limiter.Take(e.Request.Context(), e.Request, e.Cost)
	if e.Err != nil && c.reserver != nil && errors.Is(e.Err, held.ErrNoEnd) {
		c.ends.Store(true) // Describe does not return the limits of single keys or requests
		return c.reserve(e.Request.Context(), e)
	}
	e.Outcome = c.outcome(e)
	return nil
}

// badCost is the error of a request refused by Options.Cost.
type badCost struct {
	pkg, thing string
	cost       int
}

func (b badCost) Error() string {
	return fmt.Sprintf("%s: Options.Cost refuses the %s: it is %d", b.pkg, b.thing, b.cost)
}

func (b badCost) Unwrap() []error { return []error{outcome.ErrBadRequest, ratelimit.ErrNegativeCost} }

func (c *Core[R]) reserve(ctx context.Context, e *Event[R]) (res *ratelimit.Reservation) {
	res, e.Err = c.reserver.Reserve(ctx, e.Request, e.Cost, c.maxDelay)
	if res != nil {
		e.Decision = res.Decision
	}
	e.Outcome = c.outcome(e)
	if !e.Decision.Allowed {
		return nil
	}
	e.held = res
	return res
}

// Holds reports whether a request must be held before it is served.
func (c *Core[R]) Holds(e *Event[R]) bool { return e.Outcome == Allowed && e.Decision.Delay > 0 }

// Hold sleeps until an allowed request may be served, and reports true. Otherwise it sets the outcome: Rejected if the
// request's context has ended, and Denied in all other cases. Report the decision only after Hold, when the outcome is final.
func (c *Core[R]) Hold(e *Event[R]) bool {
	if !c.Holds(e) {
		return true
	}
	switch err, own := c.sleep(e), e.Request.Context().Err(); {
	case err == nil:
	case own != nil:
		e.Outcome, e.Err = Rejected, own
	default:
		e.Outcome = Denied // too many requests wait, the deadline is too early, or held requests are refused
		if errors.Is(err, context.DeadlineExceeded) || never(err) {
			c.decideAgain(e)
		}
	}
	return e.Outcome == Allowed
}

// decideAgain replaces the decision on a request whose hold was ended by MaxHold or by a lowered limit. The client
// receives the wait, or the refusal, of a request made now.
func (c *Core[R]) decideAgain(e *Event[R]) {
	d, err := ratelimit.Peek(e.Request.Context(), c.limiter, e.Request, e.Cost)
	if err != nil && !never(err) {
		return
	}
	if e.Decision, e.Err = d, err; !d.Allowed {
		e.Outcome = c.outcome(e)
	}
}

// never reports whether a limit refuses a request for ever.
func never(err error) bool {
	return errors.Is(err, ratelimit.ErrExceedsLimit) || errors.Is(err, ratelimit.ErrBlocked)
}

// sleep sleeps until a request's delay is over. It returns an error if the request cannot be served then.
func (c *Core[R]) sleep(e *Event[R]) error {
	if c.refusing.Err() != nil {
		return c.refusing.Err()
	}
	ctx, cancel := context.WithCancel(e.Request.Context())
	defer cancel()
	defer context.AfterFunc(c.refusing, cancel)()
	if e.held == nil {
		return wait.Sleep(ctx, e.Decision.Delay)
	}
	if c.MaxHold > 0 { // the delay becomes longer if the limit is lowered
		bounded, end := wait.Within(ctx, c.MaxHold)
		defer end()
		ctx = bounded
	}
	return e.held.Wait(ctx) // Wait ends earlier if an earlier request leaves
}

// RefuseHeld ends the waits of held requests. They are Denied, as is each later request that would be held.
func (c *Core[R]) RefuseHeld() { c.refuse() }

// WaitFor makes a denied request wait until a higher cost would pass. It has no effect if the limiter has no Peek.
func (c *Core[R]) WaitFor(e *Event[R], cost int) {
	if e.Outcome != Denied || e.Decision.Allowed {
		return
	}
	if d, err := ratelimit.Peek(e.Request.Context(), c.limiter, e.Request, cost); err == nil {
		e.Decision.RetryAfter = max(e.Decision.RetryAfter, d.RetryAfter)
	}
}

func (c *Core[R]) outcome(e *Event[R]) Outcome {
	switch cause := e.Cause(); {
	case cause == outcome.CauseNone && e.Decision.Allowed && (e.Decision.Delay <= 0 || !c.TooLate(e.Request, e.Decision.Delay)):
		return Allowed
	case cause == outcome.CauseNone:
		return Denied
	case cause == outcome.CauseExceeds, cause == outcome.CauseBlocked:
		return Exceeds
	case cause.Rejected():
		e.Err = outcome.Plain(e.Err)
		return Rejected
	case c.FailOpen && cause.FailsOpen():
		return FailedOpen
	}
	return Failed
}

// Report passes the event to all observers but the client.
func (c *Core[R]) Report(e *Event[R]) {
	c.counts[e.Outcome].Add(1)
	if e.Decision.Degraded {
		c.degraded.Add(1)
	}
	if e.Outcome >= Failed {
		cause := e.Cause()
		var about []any
		if c.About != nil {
			about = c.About(e.Request)
		}
		c.logs[cause].line(e.Request.Context(), c.Logger, c.Now(), cause.Level(), c.Package+": "+c.Thing+" not decided",
			append(about, "outcome", e.Outcome, "error", e.Err)...)
	}
	if c.OnDecision != nil {
		c.OnDecision(*e)
	}
}

// Charge is a request's charge. The zero Charge is empty.
type Charge[R Request] struct {
	core    *Core[R]
	request R
	res     *ratelimit.Reservation
	cost    int
	actual  int
	stay    *Stay[R] // the hold of the request's units, or nil if it holds none
}

// Charge returns a decision's charge. Defer its End at once. If [Charge.Serve] is not
// called, the request has not reached its handler, and End gives everything back.
func (c *Core[R]) Charge(e *Event[R], res *ratelimit.Reservation) *Charge[R] {
	return &Charge[R]{core: c, request: e.Request, res: res, cost: e.Cost}
}

// Serve records that the request reaches its handler. From then on the cost stays
// charged, unless the outcome is settled. Serve returns the context for the handler.
func (c *Charge[R]) Serve(ctx context.Context) context.Context {
	c.actual = c.cost
	if c.res == nil {
		return ctx
	}
	return c.hold(ctx)
}

// Settle settles the actual cost of a request whose handler has returned or panicked. It does nothing if nothing was charged.
func (c *Charge[R]) Settle(actual func(cost int) int) {
	if c.res != nil {
		c.actual = actual(c.cost)
	}
}

// Refused records an inner limiter's refusal of the request. Then everything is given back.
func (c *Charge[R]) Refused(e *Event[R]) {
	c.actual = 0
	c.core.Refused(e, c.res)
}

// End settles the charge, or gives it back.
func (c *Charge[R]) End() {
	switch {
	case c.stay != nil:
		c.stay.leave(c.actual)
	case c.res != nil:
		c.core.settle(c.request, c.res, c.actual)
	}
}

// settle settles a charge. It counts and logs a failure.
func (c *Core[R]) settle(r R, res *ratelimit.Reservation, actual int) {
	if err := res.Settle(actual); err != nil {
		c.notSettled(r, err)
	}
}

// notSettled counts and logs a charge left unsettled by an error.
func (c *Core[R]) notSettled(r R, err error) {
	c.unsettled.Add(1)
	c.settleLog.line(r.Context(), c.Logger, c.Now(), slog.LevelWarn, c.Package+": charge not settled", "error", err)
}

// Answer returns the answer to a refused request, in gRPC's terms.
func (c *Core[R]) Answer(e *Event[R], keyCode rpcstatus.Code) rpcstatus.Answer {
	if e.Outcome != Denied && e.Outcome != Exceeds {
		return rpcstatus.Undecided(e.Request.Context(), e.Cause(), keyCode, c.Spread(e.Request, e.Decision.RetryAfter))
	}
	text := c.textOf(&e.Decision.Limit)
	a := rpcstatus.Answer{Code: rpcstatus.ResourceExhausted, Limit: text}
	switch {
	case e.Cause() == outcome.CauseBlocked:
		a.Message, a.Never = text.Blocked, true
	case e.Outcome == Exceeds:
		a.Message, a.Never = text.Exceeds, true
	case e.Decision.Allowed:
		a.Message, a.Wait = text.Delayed, c.Spread(e.Request, e.Decision.Delay)
	default:
		a.Message, a.Wait = text.Denied, c.Spread(e.Request, e.Decision.RetryAfter)
	}
	return a
}

// textOf returns a limit's description for answers.
func (c *Core[R]) textOf(limit *ratelimit.Limit) *rpcstatus.LimitText {
	text, ok := c.texts.Find(*limit)
	if !ok {
		text = rpcstatus.TextOf(limit)
		c.texts.Add(*limit, text)
	}
	return text
}

// Spread returns a wait plus the client's share of the jitter.
func (c *Core[R]) Spread(r R, d time.Duration) time.Duration {
	return d + min(c.Share(r, d), wait.Forever-d)
}

// Share returns the client's share of the jitter, for the caller to add to a wait.
func (c *Core[R]) Share(r R, wait time.Duration) time.Duration {
	span := min(c.Jitter, wait/10)
	if span <= 0 {
		return 0
	}
	return c.seed.share(c.JitterBy(r), c.Now(), wait, span)
}
