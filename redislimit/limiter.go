// Package redislimit holds the keys of a whole fleet to one budget: the limits of
// [ratelimit], kept in Redis.
package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
)

// Limiter is a limiter whose budgets are kept in Redis. Make one with [New].
type Limiter struct {
	remote
	space      namespace
	name       string
	limitFor   func(string) ratelimit.Limit
	onDecision func(ratelimit.Event[string])
	maxLog     int
	plan       atomic.Pointer[plan] // New's or SetLimit's limit
}

var _ ratelimit.Reserver[string] = (*Limiter)(nil)

// Options are what [New] can be told beyond the limit. Nil and the zero Options mean
// the defaults, but Name is required if the limit has none. Functions in it are
// called concurrently, under no lock.
type Options struct {
	// Name names the budgets: it is a part of their Redis keys. Limiters of one Name,
	// Prefix and server share their budgets, whatever their limits. If empty, the
	// limit's Name; one of both is required. It must not contain braces.
	Name string

	// Prefix is what all Redis keys begin with. If empty, "ratelimit:". It must not
	// contain braces.
	Prefix string

	// LimitFor returns the limit of a key; the zero Limit means New's or SetLimit's. A
	// limit without a name gets the name of that one. It is asked for each decision.
	// If it returns an invalid limit, the key is denied with
	// [ratelimit.ErrInvalidLimit]. If nil, all keys have New's limit.
	LimitFor func(key string) ratelimit.Limit

	// Timeout bounds one decision, beside the caller's context: waiting for a
	// connection, dialling, sending and the answer together. If zero, 50 ms; below
	// zero there is no bound but the context's and the client's own. A settlement
	// has the same bound.
	Timeout time.Duration

	// MaxLog bounds Rate.Units of a sliding log, whose spendings are stored one by
	// one: New and SetLimit refuse a limit above it. If zero, 2 000. To settle a
	// spending among n takes the server time in proportion to n.
	MaxLog int

	// Slot returns, in a cluster, the text by which a key's slot is chosen, so that
	// keys of several limiters that one decision needs are on one node. It must
	// depend on the key alone. If nil, the key itself chooses: limiters with equal
	// keys share a slot.
	Slot func(key string) string

	// Batch is how many decisions that are under way at once may share a round trip.
	// If zero, 64; 1 means that each has one of its own.
	Batch int

	// OnDecision is called after each Allow, Take, Reserve and Wait, with what was
	// decided, in the caller's goroutine. It is not called by Peek. If nil, nothing is.
	OnDecision func(ratelimit.Event[string])
}

const (
	defaultTimeout = 50 * time.Millisecond
	defaultMaxLog  = 2000
	defaultBatch   = 64
)

// New returns a limiter that holds each key to the limit.
func New(client redis.UniversalClient, limit ratelimit.Limit, opts *Options) (*Limiter, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := o.complete(client, &limit); err != nil {
		return nil, err
	}
	space, err := newNamespace(o.Prefix, o.Name, o.Slot)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(limit, o.MaxLog)
	if err != nil {
		return nil, err
	}
	l := &Limiter{remote: remote{sender: newSender(client, o.Timeout, o.Batch)}, space: space, name: o.Name, limitFor: o.LimitFor,
		onDecision: o.OnDecision, maxLog: o.MaxLog}
	l.plan.Store(p)
	return l, nil
}

// complete fills in the defaults, and says what is wrong.
func (o *Options) complete(client redis.UniversalClient, limit *ratelimit.Limit) error {
	if o.Name == "" {
		o.Name = limit.Name
	}
	if o.MaxLog == 0 {
		o.MaxLog = defaultMaxLog
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Batch == 0 {
		o.Batch = defaultBatch
	}
	switch {
	case client == nil || reflect.ValueOf(client).Kind() == reflect.Pointer && reflect.ValueOf(client).IsNil():
		return errors.New("redislimit: the client is nil")
	case o.Name == "":
		return errors.New("redislimit: Options.Name and the limit's Name are both empty: one of them names the budgets in Redis")
	case o.MaxLog < 0:
		return fmt.Errorf("redislimit: Options.MaxLog is %d, want 0 for the default or more", o.MaxLog)
	case o.Batch < 0:
		return fmt.Errorf("redislimit: Options.Batch is %d, want 0 for the default or more", o.Batch)
	}
	return nil
}

// Allow spends cost of the key's budget and reports true; or it spends nothing and
// reports false, on any error too.
func (l *Limiter) Allow(key string, cost int) bool {
	d, _ := l.Take(context.Background(), key, cost)
	return d.Allowed
}

// Take spends cost of the key's budget, or nothing, and says how the key stands.
func (l *Limiter) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	var s session
	d, err := l.decide(ctx, &s, key, cost, math.MaxInt64, opTake)
	l.report(key, cost, d, err)
	return d, err
}

// Peek says what Take would answer, and how the key stands. It changes nothing.
func (l *Limiter) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	var s session
	d, err := l.decide(ctx, &s, key, cost, math.MaxInt64, opPeek)
	return d, err
}

// Reserve is Take, but it may book ahead by up to maxDelay, and what it charged can
// be settled later.
func (l *Limiter) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	s := new(session)
	d, err := l.decide(ctx, s, key, cost, max(0, maxDelay), opKeep)
	r := ratelimit.NewReservation(d, s.settlerFor(cost))
	l.report(key, cost, d, err)
	return r, err
}

// settlerFor returns how to settle a reservation: one of 0 is settled by charging. It
// returns nil if nothing was sent.
func (s *session) settlerFor(cost int) func(int) error {
	if len(s.charges) == 0 {
		return nil
	}
	if cost > 0 {
		return s.settler()
	}
	return s.adjuster()
}

func (l *Limiter) report(key string, cost int, d ratelimit.Decision, err error) {
	if l.onDecision != nil {
		l.onDecision(ratelimit.Event[string]{Key: key, Cost: cost, Decision: d,
			Spent: d.Allowed && cost > 0 && tracks(d.Limit), Err: err})
	}
}

func tracks(l ratelimit.Limit) bool { return kinds[l.Algorithm] != 0 }

// planFor returns the plan of a key.
func (l *Limiter) planFor(key string) (*plan, error) {
	if l == nil || l.sender == nil {
		panic("redislimit: a Limiter that was not made by New")
	}
	p := l.plan.Load()
	if l.limitFor == nil {
		return p, nil
	}
	return l.planOf(l.limitFor(key), "LimitFor", func() (*plan, error) { return p, nil })
}

// planOf returns the plan of a limit that a function of the user's has returned.
func (l *Limiter) planOf(limit ratelimit.Limit, function string, otherwise func() (*plan, error)) (*plan, error) {
	p := l.plan.Load()
	if limit == (ratelimit.Limit{}) {
		return otherwise()
	}
	if limit.Name == "" {
		limit.Name = p.limit.Name
	}
	if limit == p.limit {
		return p, nil
	}
	p, err := newPlan(limit, l.maxLog)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", function, err)
	}
	return p, nil
}

// session is one decision: what is asked, and what was answered.
type session struct {
	remote
	keys    []string
	charges []charge
	salt    uint32
	reading int64
	allowed bool

	oneKey     [1]string
	oneCharge  [1]charge
	onePayload [headSize + askSize]byte
}

// decide decides on one key.
func (l *Limiter) decide(ctx context.Context, s *session, key string, cost int, ahead time.Duration, op byte) (d ratelimit.Decision, err error) {
	if ctx == nil {
		ctx = context.Background()
	}
	if err = ctx.Err(); err != nil {
		return d, ended(err, false)
	}
	if cost < 0 {
		return d, fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, cost)
	}
	p, err := l.planFor(key)
	if err != nil {
		return d, err
	}
	d.Limit = p.limit
	if err = p.check(int64(cost)); err != nil {
		return d, err
	}
	if p.kind == 0 {
		d.Allowed, d.Remaining = true, p.limit.Capacity()
		return d, nil
	}
	s.one(l, l.space.key(key), p, int64(cost), ahead, op)
	if cost == 0 {
		op = opPeek
	}
	if err = s.run(ctx, op); err != nil {
		return d, err
	}
	c := &s.charges[0]
	if c.allowed && op != opPeek {
		c.spend()
	}
	c.decide(s.reading, &d)
	return d, nil
}

// one makes the session one of a single charge.
func (s *session) one(l *Limiter, key string, p *plan, cost int64, ahead time.Duration, op byte) {
	s.remote = l.remote
	s.oneKey[0] = key
	s.oneCharge[0] = charge{plan: p, cost: cost, shares: 1}
	s.keys, s.charges = s.oneKey[:], s.oneCharge[:]
	if p.kind == kindLeaky || op == opKeep {
		s.charges[0].ahead = p.clampAhead(ahead)
	}
}

// run sends the decision, and reads the answer.
func (s *session) run(ctx context.Context, op byte) error {
	b := s.onePayload[:0] // grows for several charges
	if len(s.charges) > 1 {
		b = make([]byte, 0, headSize+askSize*len(s.charges))
	}
	s.salt = newSalt()
	b = s.head(b, op, s.salt, len(s.charges))
	for i := range s.charges {
		b = s.charges[i].ask(b)
	}
	sc := s.deciderFor().take
	if op == opPeek {
		sc = s.deciderFor().peek
	}
	reply, err := s.sender.eval(ctx, sc, s.keys, b)
	if err != nil {
		return err
	}
	return s.answer(reply)
}

// failed returns the error for a key that could not be read.
func (s *session) failed(f failure) error {
	for i := range s.charges {
		if c := &s.charges[i]; c.key == f.key {
			return f.err(c.plan.limit.Name)
		}
	}
	return f.err("")
}

// Adjust corrects what a key has spent: a positive delta charges it, into debt if need
// be, and a negative one is a grant.
func (l *Limiter) Adjust(ctx context.Context, key string, delta int) error {
	p, err := l.planFor(key)
	if err != nil || delta == 0 || p.kind == 0 {
		return err
	}
	return l.adjust(ctx, []string{l.space.key(key)}, correction{plan: p, delta: int64(delta)})
}

// Reset forgets the key: its next decision is that of a key never seen, and what was
// reserved before cannot be settled any more.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	return l.sender.del(ctx, l.space.key(key))
}

// SetLimit replaces the limit that New was given. What was spent stays spent.
func (l *Limiter) SetLimit(limit ratelimit.Limit) error {
	p, err := newPlan(limit, l.maxLog)
	if err != nil {
		return err
	}
	l.plan.Store(p)
	return nil
}

// Limits returns the limit that New or SetLimit was given.
func (l *Limiter) Limits() []ratelimit.Limit { return []ratelimit.Limit{l.plan.Load().limit} }
