package sqllimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/meter"
)

// units are one reservation's units under ratelimit.Concurrent on one key.
type units struct {
	plan *plan
	mark uint32

	// The possible beginnings of the hold: one known instant, and the instants of possibly written extensions since.
	// If another write came first, an operation is repeated, and its caller may not learn whether it was written.
	mu    sync.Mutex
	at    []meter.Spending
	tried []meter.Spending // spendings of the present extension
	lost  bool             // the last attempt has found lapsed units
}

// unitsOf returns an operation's held units, or nil if there are none.
func unitsOf(o *operation) *units {
	if o == nil || !o.plan.meter.Holds() || !o.decision.Allowed || o.err != nil || o.cost == 0 {
		return nil
	}
	return &units{plan: o.plan, mark: o.mark, at: []meter.Spending{o.spending}}
}

// put makes the operation act on the units, under their key's present plan.
func (u *units) put(o *operation, p *plan, do func(*account, *operation) error) {
	if !p.meter.Holds() {
		p = u.plan
	}
	o.plan, o.do, o.mark, o.units = p, do, u.mark, u
}

// extended ends an extension with its error, perhaps nil.
func (u *units) extended(err error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case err == nil && len(u.tried) > 0:
		u.at = u.tried[len(u.tried)-1:]
	case errors.Is(err, ratelimit.ErrUnanswered):
		for _, sp := range u.tried {
			if !slices.Contains(u.at, sp) {
				u.at = append(u.at, sp)
			}
		}
	}
	u.tried = nil
	if err == nil && u.lost {
		return fmt.Errorf("%w after %v, under %v", ratelimit.ErrLost, u.plan.limit.Rate.Per, u.plan.limit)
	}
	return err
}

// held returns the state with an operation's units, and its plan. If the
// units were spent before a reset or under another algorithm, it returns nil.
func (a *account) held(o *operation) (*meter.State, *plan, error) {
	if a.plan == nil || a.mark != o.mark || !a.plan.meter.Holds() {
		return nil, nil, nil
	}
	s, err := a.under(o.plan)
	return s, o.plan, err
}

// release gives units back.
func (a *account) release(o *operation) error {
	s, p, err := a.held(o)
	if s == nil || err != nil {
		return err
	}
	u := o.units
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, sp := range slices.Backward(slices.Concat(u.at, u.tried)) {
		if p.meter.End(s, a.now, sp) > 0 {
			a.change(p, s)
			break
		}
	}
	return nil
}

// extend restarts the hold of units.
func (a *account) extend(o *operation) error {
	s, p, err := a.held(o)
	if err != nil {
		return err
	}
	u := o.units
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lost = true; s == nil {
		return nil
	}
	for _, sp := range slices.Backward(slices.Concat(u.at, u.tried)) {
		ok := p.meter.Extend(s, a.now, &sp)
		if sp.Cost == 0 {
			continue
		}
		a.change(p, s)
		u.tried, u.lost = append(u.tried, sp), !ok
		break
	}
	return nil
}

// endless returns the error of a call if it charges units but could
// not give them back. It returns nil if the plan allows such calls.
func (p *plan) endless(cost int) error {
	if cost <= 0 || !p.meter.Holds() {
		return nil
	}
	return &held.NoEnd{Name: p.limit.Name, Text: p.limit.String()}
}

// extends makes the first charge under Concurrent extend all in one transaction.
func (j *joint) extends(charges []ratelimit.Charge, parts []*part) {
	var of []*part
	for i, p := range parts {
		if p.units = unitsOf(&p.operation); p.units == nil {
			continue
		}
		if of = append(of, p); len(of) == 1 {
			charges[i].Extend = func(ctx context.Context) error { return j.extend(ctx, of) }
		}
	}
}

// extend restarts the hold of one request's units.
func (j *joint) extend(ctx context.Context, spent []*part) error {
	parts := make([]*part, len(spent))
	for i, s := range spent {
		p := s.limiter.latest(s.row[len(s.limiter.space):], s.plan)
		if s.plan.limit != p.limit {
			p = s.plan
		}
		parts[i] = &part{limiter: s.limiter, row: s.row}
		s.units.put(&parts[i].operation, p, (*account).extend)
	}
	err := j.correct(ctx, parts)
	var lost error
	for _, s := range spent {
		if e := s.units.extended(err); e != nil && (err != nil || !s.shadow) {
			lost = e
		}
	}
	return lost
}
