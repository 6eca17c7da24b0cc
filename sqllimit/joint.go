package sqllimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/estimates"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
)

var _ ratelimit.Joinable = (*Limiter)(nil)

// joint decides on keys of several limiters in one transaction, together with other requests for the same keys: see queue.
type joint struct {
	limiters []*Limiter
	queue    queue
}

// Join makes All decide on all layers in one transaction, within the shortest of their Timeouts. All
// must have the same database and Table. One process's requests with a common key share transactions.
func (l *Limiter) Join(limiters []ratelimit.Joining) (ratelimit.Joint, error) {
	if l == nil || l.lines == nil {
		return nil, optional.Zero("layer 0", "Limiter", "New")
	}
	j := &joint{queue: queue{store: l.store, timeout: l.timeout}}
	for i, x := range limiters {
		other, ok := x.Limiter.(*Limiter)
		switch {
		case !ok:
			return nil, fmt.Errorf("layer %d: sqllimit cannot decide on a %T together with its own limiters: %w", i, x.Limiter, errors.ErrUnsupported)
		case other == nil || other.lines == nil:
			return nil, optional.Zero(fmt.Sprintf("layer %d", i), "Limiter", "New")
		case other.store.db != l.store.db || other.store.table != l.store.table:
			return nil, fmt.Errorf("layer %d is in another database or table than layer 0", i)
		}
		for k, before := range j.limiters {
			if before != other && before.space == other.space {
				return nil, fmt.Errorf("sqllimit: layers %d and %d have different limiters of one Name, which would share their keys: give each a Name of its own", k, i)
			}
		}
		if t := other.timeout; t >= 0 && (j.queue.timeout < 0 || t < j.queue.timeout) {
			j.queue.timeout = t
		}
		j.limiters = append(j.limiters, other)
	}
	madeQueue(j)
	return j, nil
}

// madeQueue is a hook for tests.
var madeQueue = func(*joint) {}

// Limit implements [ratelimit.Joint].
func (j *joint) Limit(limiter int, key string, ofRequest ratelimit.Limit) (ratelimit.Limit, any, error) {
	if err := checkKey(key); err != nil {
		return ratelimit.Limit{}, nil, err
	}
	p, err := j.limiters[limiter].planOfLayer(key, ofRequest)
	if err != nil {
		return ratelimit.Limit{}, nil, err
	}
	return p.limit, p, nil
}

// planOfLayer returns the plan for a request's limit, or for the key's own.
func (l *Limiter) planOfLayer(key string, ofRequest ratelimit.Limit) (*plan, error) {
	if ofRequest == (ratelimit.Limit{}) {
		return l.planFor(key)
	}
	return l.planOf(ofRequest, "Layer.Limit")
}

// Report implements [ratelimit.Joint].
func (j *joint) Report(limiter int, e ratelimit.Event[string]) {
	if f := j.limiters[limiter].onDecision; f != nil {
		f(e)
	}
}

// part is one operation of a request on a row.
type part struct {
	operation
	limiter *Limiter
	row     string
	shadow  bool
	charge  int // its charge's index, if it follows the key
}

func (j *joint) parts(charges []ratelimit.Charge) []*part {
	parts := make([]*part, len(charges))
	for i := range charges {
		c := &charges[i]
		l := j.limiters[c.Limiter]
		parts[i] = &part{operation: operation{do: (*account).take, plan: c.Plan.(*plan), cost: int64(c.Cost)}, limiter: l, row: l.space + c.Key, shadow: c.Shadow}
	}
	return parts
}

// Decide implements [ratelimit.Joint].
func (j *joint) Decide(ctx context.Context, charges []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
	ctx = wait.OrBackground(ctx)
	parts := j.parts(charges)
	w := watched(ctx, parts)
	keep := meter.Final
	if q.Settled && optional.IsPassing(ctx) {
		keep = meter.Booked
	} else if q.Settled {
		keep = meter.Open
	}
	for _, p := range parts {
		if p.keep = keep; p.plan.meter.Delays() {
			p.ahead = max(0, int64(q.MaxDelay)) / 1000
		}
	}
	err := j.spend(ctx, parts, q)
	if err == nil && !q.Peek && frees(ctx, parts) {
		err = j.spend(ctx, parts, q)
	}
	if err != nil {
		return nil, err
	}
	for i, p := range parts {
		c := &charges[i]
		c.Decided, c.Decision, c.Err = p.err == nil, p.decision, p.err
		c.Due = max(c.Decision.RetryAfter, c.Decision.Delay)
		if p.follows && p.err == nil && !p.plan.meter.Holds() {
			w.Keys[i].Open = p.followed.openBefore
		}
	}
	if !q.Settled {
		return nil, nil
	}
	j.extends(charges, parts)
	return func(costs []int) error { return j.settle(parts, costs, w) }, nil
}

// spend carries a request out.
func (j *joint) spend(ctx context.Context, parts []*part, q ratelimit.JointRequest) error {
	d := newDemand(ctx, parts, func(rows map[string]*account) error { return spendAll(parts, rows, q.Peek) })
	if q.Peek {
		return j.queue.look(d)
	}
	d.undone = q.Undone
	err := j.queue.run(d)
	if err != nil && q.Undone && d.stage.Load() == left {
		go j.undo(d, parts)
	}
	return err
}

// spendAll examines all parts, and spends them if the enforcing ones allow it. If it fails, nothing is changed.
func spendAll(parts []*part, rows map[string]*account, peek bool) error {
	allowed := true
	for _, p := range parts {
		p.peek = true
		err := p.take(rows)
		if p.err = nil; err != nil && !p.shadow {
			return err
		}
		p.err = err
		allowed = allowed && (p.shadow || p.decision.Allowed)
	}
	if peek || !allowed {
		return nil
	}
	for _, p := range parts {
		if p.err != nil {
			continue
		}
		p.peek = false
		if err := p.take(rows); err != nil {
			return err
		}
	}
	for i, p := range parts { // a shadow may have spent more of the key since
		for _, later := range parts[i+1:] {
			if later.row == p.row && later.err == nil && later.decision.Allowed {
				d := &later.decision
				p.decision.Remaining, p.decision.Debt, p.decision.ResetAfter, p.decision.NextAfter = d.Remaining, d.Debt, d.ResetAfter, d.NextAfter
			}
		}
	}
	return nil
}

// take decides on the part's row. An unreadable row has no account.
func (p *part) take(rows map[string]*account) error {
	a := rows[p.row]
	if a == nil {
		return errForeign
	}
	return a.take(&p.operation)
}

// settle corrects a request's charges. It also sends corrections of 0 for followed keys.
func (j *joint) settle(spent []*part, costs []int, w *estimates.Watch) error {
	var parts []*part
	for i, s := range spent {
		if !s.decision.Allowed || s.err != nil || s.cost == 0 || int64(costs[i]) == s.cost && s.units == nil && !s.follows {
			continue
		}
		p, err := s.limiter.planFor(s.row[len(s.limiter.space):])
		stays := err != nil || !p.tracks() || s.plan.limit != p.limit || s.follows // a later request may have had another limit
		if stays {
			p = s.plan
		}
		if s.units != nil {
			part := &part{limiter: s.limiter, row: s.row}
			s.units.put(&part.operation, p, (*account).release)
			parts = append(parts, part)
			continue
		}
		parts = append(parts, &part{limiter: s.limiter, row: s.row, charge: s.charge,
			operation: operation{do: (*account).settle, plan: p, stays: stays, follows: w != nil && s.follows, actual: int64(costs[i]), spending: s.spending, mark: s.mark, changes: s.changes}})
	}
	err := j.correct(context.Background(), parts)
	if err == nil {
		fill(w, parts)
	}
	return err
}

// undo gives back a caller's charges after it has left, once they are known.
func (j *joint) undo(d *demand, parts []*part) {
	<-d.done
	if d.err != nil || !d.answered { // the demand was not carried out
		return
	}
	for _, p := range parts {
		if !p.shadow && !p.decision.Allowed {
			return
		}
	}
	_ = j.settle(parts, make([]int, len(parts)), nil)
}

// Adjust implements [ratelimit.Joint].
func (j *joint) Adjust(ctx context.Context, charges []ratelimit.Charge) error {
	parts := j.parts(charges)
	for _, p := range parts {
		p.do, p.actual = (*account).correct, p.cost
	}
	ctx = wait.OrBackground(ctx)
	w := watched(ctx, parts)
	err := j.correct(ctx, parts)
	if err == nil {
		fill(w, parts)
	}
	return err
}

func (j *joint) correct(ctx context.Context, parts []*part) error {
	if len(parts) == 0 {
		return nil
	}
	return j.queue.run(newDemand(ctx, parts, func(rows map[string]*account) error {
		for _, p := range parts {
			if rows[p.row] == nil {
				return errForeign
			}
		}
		var errs []error
		for _, p := range parts {
			errs = append(errs, rows[p.row].carryOut(&p.operation))
		}
		return errors.Join(errs...)
	}))
}

// watched makes a call's parts follow the caller's followed keys.
func watched(ctx context.Context, parts []*part) *estimates.Watch {
	w := estimates.Of(ctx)
	if w == nil {
		return nil
	}
	for i, p := range parts {
		p.follows, p.charge = w.Keys[i].Wanted, i
	}
	return w
}

// fill fills in corrections' answers.
func fill(w *estimates.Watch, parts []*part) {
	for _, p := range parts {
		if !p.follows {
			continue
		}
		k, f := &w.Keys[p.charge], &p.followed
		k.Answered, k.Before, k.OpenBefore, k.OpenAfter = true, f.before, f.openBefore, f.openAfter
		if k.After = nil; !f.gone {
			k.After = f.after
		}
	}
}
