// Package policy limits requests by rules that are data, read from a file or a database, and changed while in use.
//
//	set, err := policy.Parse(data) // YAML or JSON
//	policies, err := policy.New(set, nil)
//	d, err := policies.Take(ctx, policy.HTTP(r, policy.Attributes{"user": user, "plan": plan}), 1)
//
// All rules that match a request are charged, or none is. Spending stays when rules change. Package admin is a
// page for operators, package audit stores denials, package sqlsource reads rules from a database.
package policy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/owed"
	"github.com/weir-go/ratelimit/policy/internal/notices"
	"github.com/weir-go/ratelimit/policy/internal/sketch"
	"github.com/weir-go/ratelimit/stats"
)

// Options configure [New]. Nil and the zero Options select the defaults.
type Options struct {
	// Engine holds the budgets. It defaults to Memory(nil).
	Engine Engine
	// OnDecision is called after each decision, under no lock, in the caller's goroutine: not by Explain, Peek, Adjust or Reset.
	OnDecision func(Decision)
	// OnThreshold is called for rules with [Rule.Notify] when a charge crosses a share of the limit: by Take, Wait, Settle or Adjust, if the key's
	// spending was below the share before it, and is not after it. The answer of the engine has both, so it is one call for each crossing, in the process
	// that charges, also if many processes share the budgets. A charge that crosses several shares calls it for each, the lowest first.
	//
	// The estimate of a Reserve calls it for nothing, and is no spending until Settle, which calls it for the real cost; units under
	// [ratelimit.Concurrent] are in use from the Reserve on. Spending is then what was spent and not regained, less the estimates of open reservations. Of a reservation that is never
	// settled, the estimate counts as open until the key is fresh. The engines in memory, on Redis and in a database know the estimates of all processes, and answer a Settle and
	// an Adjust with the spending before and after it. Leases and engines of other authors do not: there the estimates of other processes count
	// as spent, and a Settle or Adjust is followed by a look. If other calls charge the key before that look, the crossing may be missed.
	//
	// A denial for lack of budget is a call for 100 %, also if some units are left, once for each process until the key is fresh again; the charge that spends the last unit is no further one there. Under
	// limits that regain all the time, those other than fixed windows and calendars, a process that was called for a share is not called for it
	// again until it finds less than a quarter of the share spent, or the key is fresh: traffic near a share may cross it every second. For both,
	// each Policies remembers up to 65,536 keys that it was called for; beyond them a call may come early. A limit that becomes lower, or
	// a set with other shares, calls it for nothing.
	//
	// It runs in the caller's goroutine, under no lock.
	OnThreshold func(Threshold)
	// ReuseRules saves 176 bytes for each rule of a decision: OnDecision must not keep the Rules.
	ReuseRules bool
	// Logger logs the events of [Follow]. It defaults to slog.Default().
	Logger *slog.Logger
	// StandIn are the policies that decide while these cannot: the second limiter of package failover. New, Update and Follow put each set
	// in force in both or, if one engine refuses it, in neither; so do Update and Follow of the StandIn. It may have a StandIn of its own,
	// and can be that of one Policies. What it lets pass is charged to these when package failover calls its Repay. Nil means none.
	StandIn *Policies
}

// Decision is the argument of [Options.OnDecision].
type Decision = stats.PolicyDecision

// Policies decides by the rules in force. Make one with [New]. It is safe for concurrent use.
type Policies struct {
	engine      Engine
	onDecision  func(Decision)
	onThreshold func(Threshold)
	notices     notices.Notices
	opens       notices.Opens
	reuseRules  bool
	log         *slog.Logger
	current     atomic.Pointer[generation]
	killed      atomic.Uint64
	badLimits   atomic.Uint64
	exempt      atomic.Uint64
	unknown     map[string]*atomic.Uint64 // plans, by the id of a rule, since New; guarded by updating
	denials     *sketch.Sketch
	lasts       lastLimits
	queries     sync.Pool // of *query, so that a decision allocates nothing

	standIn *Policies             // that gets each set together with these, or nil
	debts   atomic.Pointer[debts] // of these as a StandIn; nil if they are none

	updating sync.Mutex // held while a set is put in force; before the StandIn's, and before mu
	lead     *Policies  // that these stand in for, or nil; guarded by updating
	gone     gone
	forget   *time.Timer // ends the time of the rules in gone; nil if there are none; guarded by updating

	mu      sync.Mutex // guards the fields below, and is never held for long
	failed  error
	failedT time.Time
	checked time.Time // when the set in force was last seen to be the newest
}

var _ ratelimit.Reserver[Request] = (*Policies)(nil)

// New returns the policies of a set. A nil set limits nothing. The errors are the errors of [Set.Validate] and the engine's.
func New(set *Set, opts *Options) (*Policies, error) {
	p := &Policies{denials: sketch.New()}
	if opts != nil {
		p.engine, p.onDecision, p.reuseRules, p.log = opts.Engine, opts.OnDecision, opts.ReuseRules, opts.Logger
		p.onThreshold = opts.OnThreshold
	}
	if p.engine == nil {
		p.engine = Memory(nil)
	}
	if set == nil {
		set = new(Set)
	}
	if err := p.leads(opts); err != nil {
		return nil, err
	}
	if err := p.Update(set); err != nil {
		p.leave()
		return nil, err
	}
	return p, nil
}

// leads makes new policies those that pass on sets to their StandIn.
func (p *Policies) leads(opts *Options) error {
	if opts == nil || opts.StandIn == nil {
		return nil
	}
	s := opts.StandIn
	s.mustBeMade()
	s.updating.Lock()
	defer s.updating.Unlock()
	if s.lead != nil {
		return errors.New("policy: Options.StandIn stands in for other policies already")
	}
	p.standIn, s.lead = s, p
	s.debts.Store(&debts{lead: p, rules: map[string]*owed.Ledger[debtor]{}})
	return nil
}

// leave undoes leads.
func (p *Policies) leave() {
	if p.standIn != nil {
		p.standIn.updating.Lock()
		p.standIn.lead = nil
		p.standIn.debts.Store(nil)
		p.standIn.updating.Unlock()
	}
}

// Update puts another set in force from the next decision on. Rules that keep their names keep their spending, and so does a rule that comes
// back within ten minutes. An
// invalid set changes nothing, here and in [Options.StandIn].
func (p *Policies) Update(set *Set) error {
	p.mustBeMade()
	return p.update(set, false)
}

// update is Update of a set that may have been validated.
func (p *Policies) update(set *Set, validated bool) error {
	together, lead := p.hold()
	if lead != nil {
		return lead.update(set, validated)
	}
	defer release(together)
	var err error
	if !validated {
		err = set.Validate()
	}
	var next []*generation
	if err == nil {
		next, err = openAll(together, set)
	}
	for i, p := range together {
		if err == nil {
			p.use(next[i])
		}
		p.fault(err)
	}
	return err
}

// hold holds the policies and those that stand in for them, which get each set together. Policies that stand in for others are not held: these
// are returned.
func (p *Policies) hold() (together []*Policies, lead *Policies) {
	p.updating.Lock()
	if p.lead != nil {
		defer p.updating.Unlock()
		return nil, p.lead
	}
	together = []*Policies{p}
	for s := p.standIn; s != nil; s = s.standIn {
		s.updating.Lock()
		together = append(together, s)
	}
	return together, nil
}

// release ends hold.
func release(together []*Policies) {
	for _, p := range together {
		p.updating.Unlock()
	}
}

// openAll makes a valid set ready for several policies, or for none. All are held for updating.
func openAll(all []*Policies, set *Set) ([]*generation, error) {
	next := make([]*generation, len(all))
	for i, p := range all {
		var err error
		if next[i], err = p.open(set); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// fault records the reason that a set could not be loaded, or with nil that it could.
func (p *Policies) fault(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.failed, p.failedT = err, time.Time{}
	if err != nil {
		p.failedT = now
	} else {
		p.checked = now
	}
}

// Current returns the set in force.
func (p *Policies) Current() *Set {
	p.mustBeMade()
	return p.now().set
}

func (p *Policies) now() *generation {
	s := p.current.Load()
	if s == nil {
		panic(optional.Zero("policy", "Policies", "New"))
	}
	return s
}

func (p *Policies) mustBeMade() {
	if p == nil || p.engine == nil {
		panic(optional.Zero("policy", "Policies", "New"))
	}
}

// Allow is like Take, but only reports whether the cost was charged.
func (p *Policies) Allow(r Request, cost int) bool {
	if g := p.now(); !g.inMemory() || p.onDecision != nil || p.notifying(g) || g.always || cost == 0 { // an engine may allow a cost of 0 without looking
		d, err := p.Take(context.Background(), r, cost)
		return d.Allowed && err == nil
	}
	q := p.newQuery(r, cost)
	allowed := q.answered() && q.err == nil
	if !q.answered() {
		if q.in.decider.shares(&q.charges) {
			d, err := q.in.decider.takeShared(context.Background(), &q.charges, cost)
			allowed = d.Allowed && err == nil
		} else {
			allowed = q.in.decider.stack.Allow(&q.charges, cost)
		}
		p.count(q, allowed)
	}
	p.free(q)
	return allowed
}

// Take charges the cost to all rules that match the request, or to none: see [ratelimit.Layered.Take]. Rules with Share are asked last, one after
// the other; if one denies, the charges of the others are given back. If no rule matches, the
// request is allowed. After an error nothing is charged. The errors are the engine's, [keyfunc.ErrNoKey] for a missing
// attribute, [keyfunc.ErrMalformedKey] for an attribute above 1 KiB or for text in place of an IP address, and
// [keyfunc.ErrMisconfigured] for a cost that is not a whole number, unless a header field holds it.
func (p *Policies) Take(ctx context.Context, r Request, cost int) (d ratelimit.Decision, err error) {
	q := p.newQuery(r, cost)
	if q.answered() {
		d, err = q.decision, q.err
	} else {
		d, err = p.decide(ctx, q)
	}
	if b := p.debts.Load(); b != nil {
		record(b.of(ctx, q, &d, err))
	}
	p.report(ctx, q, &d, err)
	p.free(q)
	return d, err
}

// Reserve is Take with a charge that can be settled: see [ratelimit.Layered.Reserve]. For at most maxDelay it waits in the line of a rule with
// Share. Only Cancel refunds the charges of rules
// with a Cost. A rule with Actual settles at the request's attribute of that name, read from r when Settle is called:
// r is, for example, a map that the program has completed by then. Where the attribute is missing, the rule settles as one without Actual: at the
// argument of Settle, or with a Cost at that, and then Settle returns [keyfunc.ErrNoKey] unless the rule is Optional. Where it is no whole
// number, the charge stays, and Settle returns [keyfunc.ErrMisconfigured]. The other rules are settled also then. Settle(0), which is Cancel,
// does not read it; nor do Take and Wait. The reservation holds the keys of its charges, and the request only if a rule of the set has Actual.
func (p *Policies) Reserve(ctx context.Context, r Request, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	q := p.newQuery(r, cost)
	if q.answered() {
		defer p.free(q)
		p.report(ctx, q, &q.decision, q.err)
		return ratelimit.NewReservation(q.decision, nil), q.err
	}
	if q.in.settles {
		q.charges.request = r
	}
	q.charges.estimates = !optional.IsPassing(ctx)
	res, err := p.reserve(ctx, q, maxDelay)
	res = owing(p.debts.Load().of(ctx, q, &res.Decision, err), res)
	p.report(ctx, q, &res.Decision, err)
	q.request = nil // the reservation keeps the charges, and with them q
	if p.notifying(q.in) {
		res = p.settling(q.in, &q.charges, res)
	}
	return res, err
}

// Wait is like Take, but waits until the rules allow the cost: see [ratelimit.Wait]. It uses the set in force at the call until
// it returns, but for the limit and the weights of a rule with Share, which a new set changes also for calls in line. In the line of such a rule
// a call holds its charges of the other rules. While one of these denies, a call with such a rule tries again each second, not first come,
// first served.
func (p *Policies) Wait(ctx context.Context, r Request, cost int) error {
	q := p.newQuery(r, cost)
	defer p.free(q)
	if q.answered() {
		p.report(ctx, q, &q.decision, q.err)
		return q.err
	}
	if q.charges.results == nil {
		q.charges.results = p.room(q, len(q.charges.List)) // without it, the decisions of the rules are not known afterwards
	}
	err := p.waitEmpty(ctx, q)
	if err == nil {
		err = q.in.decider.wait(ctx, &q.charges, cost)
	}
	d := q.waited(err)
	if err == nil && q.in.always {
		_, err = p.chargeRest(ctx, q, d, nil) // of shadows
	}
	p.report(ctx, q, &d, err)
	return err
}

// Stats returns the counters and the state of the policies.
func (p *Policies) Stats() stats.Policies {
	s := p.now()
	var unknown map[string]uint64
	for _, r := range s.rules {
		if r.unknownPlans != nil {
			if unknown == nil {
				unknown = map[string]uint64{}
			}
			unknown[r.Name] = r.unknownPlans.Load()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return stats.Policies{
		UnknownPlans: unknown,
		Version:      s.set.Version,
		Generation:   s.number,
		LoadedAt:     s.loadedAt,
		CheckedAt:    p.checked,
		Rules:        len(s.set.Rules),
		Names:        s.names,
		KillSwitch:   s.set.KillSwitch,
		Killed:       p.killed.Load(),
		Exempt:       p.exempt.Load(),
		BadLimits:    p.badLimits.Load(),
		LastError:    p.failed,
		LastErrorAt:  p.failedT,
	}
}
