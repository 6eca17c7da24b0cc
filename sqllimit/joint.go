package sqllimit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/wait"
)

var _ ratelimit.Joinable = (*Limiter)(nil)

// joint decides on keys of several limiters in one transaction. All rows are locked in the order of their keys, and then missing
// rows are inserted in that order: so no two transactions wait for each other.
type joint struct {
	limiters []*Limiter
	store    store
	timeout  time.Duration // the shortest; below zero: none
}

// Join makes All decide on all layers in one transaction, within the shortest of their Timeouts. All must have the same
// database and Table.
func (l *Limiter) Join(limiters []ratelimit.Joining) (ratelimit.Joint, error) {
	l.check()
	j := &joint{store: l.store, timeout: l.timeout}
	for i, x := range limiters {
		other, ok := x.Limiter.(*Limiter)
		switch {
		case !ok:
			return nil, fmt.Errorf("layer %d: sqllimit cannot decide on a %T together with its own limiters", i, x.Limiter)
		case other.store.db != l.store.db || other.store.table != l.store.table:
			return nil, fmt.Errorf("layer %d is in another database or table than layer 0", i)
		}
		for k, before := range j.limiters {
			if before != other && before.space == other.space {
				return nil, fmt.Errorf("sqllimit: layers %d and %d have different limiters of one Name, which would share their keys: give each a Name of its own", k, i)
			}
		}
		if t := other.timeout; t >= 0 && (j.timeout < 0 || t < j.timeout) {
			j.timeout = t
		}
		j.limiters = append(j.limiters, other)
	}
	return j, nil
}

// Limit implements [ratelimit.Joint].
func (j *joint) Limit(limiter int, key string, ofRequest ratelimit.Limit) (ratelimit.Limit, any, error) {
	if err := checkKey(key); err != nil {
		return ratelimit.Limit{}, nil, err
	}
	p, err := j.limiters[limiter].planOf(key, ofRequest)
	if err != nil {
		return ratelimit.Limit{}, nil, err
	}
	return p.limit, p, nil
}

// planOf returns the plan of a request's limit, or of the key.
func (l *Limiter) planOf(key string, limit ratelimit.Limit) (*plan, error) {
	if limit == (ratelimit.Limit{}) {
		return l.planFor(key)
	}
	p := l.plan.Load()
	if limit.Name == "" {
		limit.Name = p.limit.Name
	}
	if limit == p.limit {
		return p, nil
	}
	p, err := newPlan(limit)
	if err != nil {
		return nil, fmt.Errorf("Layer.Limit: %w", err)
	}
	p.since.Store(always)
	return p, nil
}

// Report implements [ratelimit.Joint].
func (j *joint) Report(limiter int, e ratelimit.Event[string]) {
	if f := j.limiters[limiter].onDecision; f != nil {
		f(e)
	}
}

// part is one operation of a joint decision on a row.
type part struct {
	operation
	row    []byte
	shadow bool
}

func (j *joint) parts(charges []ratelimit.Charge) ([]*part, error) {
	parts := make([]*part, len(charges))
	for i := range charges {
		c := &charges[i]
		l := j.limiters[c.Limiter]
		p := c.Plan.(*plan)
		parts[i] = &part{operation: operation{do: (*account).take, plan: p, cost: int64(c.Cost)}, row: []byte(l.space + c.Key), shadow: c.Shadow}
	}
	return parts, nil
}

// Decide implements [ratelimit.Joint].
func (j *joint) Decide(ctx context.Context, charges []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
	parts, err := j.parts(charges)
	if err != nil {
		return nil, err
	}
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
	err = j.transact(ctx, parts, !q.Peek, func(rows map[string]*account) error { return spendAll(parts, rows, q.Peek) })
	if err != nil {
		return nil, err
	}
	for i, p := range parts {
		c := &charges[i]
		c.Decided, c.Decision, c.Err = p.err == nil, p.decision, p.err
		c.Due = max(c.Decision.RetryAfter, c.Decision.Delay)
	}
	if !q.Settled {
		return nil, nil
	}
	return func(costs []int) error { return j.settle(charges, parts, costs) }, nil
}

// spendAll looks at all parts, and spends them if the enforcing ones allow it.
func spendAll(parts []*part, rows map[string]*account, peek bool) error {
	allowed := true
	for _, p := range parts {
		p.peek = true
		err := rows[string(p.row)].take(&p.operation)
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
		if err := rows[string(p.row)].take(&p.operation); err != nil {
			return err
		}
	}
	for i, p := range parts { // a shadow may have spent more of the key since
		for _, later := range parts[i+1:] {
			if string(later.row) == string(p.row) && later.err == nil && later.decision.Allowed {
				d := &later.decision
				p.decision.Remaining, p.decision.Debt, p.decision.ResetAfter, p.decision.NextAfter = d.Remaining, d.Debt, d.ResetAfter, d.NextAfter
			}
		}
	}
	return nil
}

func (j *joint) settle(charges []ratelimit.Charge, spent []*part, costs []int) error {
	var parts []*part
	for i, s := range spent {
		if !s.decision.Allowed || s.err != nil || s.cost == 0 || int64(costs[i]) == s.cost {
			continue
		}
		p, err := j.limiters[charges[i].Limiter].planFor(charges[i].Key)
		if err != nil || !p.tracks() || charges[i].Limit != p.limit {
			p = s.plan
		}
		parts = append(parts, &part{row: s.row, operation: operation{do: (*account).settle, plan: p, actual: int64(costs[i]), spending: s.spending, mark: s.mark, changes: s.changes}})
	}
	return j.correct(context.Background(), parts)
}

// Adjust implements [ratelimit.Joint].
func (j *joint) Adjust(ctx context.Context, charges []ratelimit.Charge) error {
	parts, err := j.parts(charges)
	if err != nil {
		return err
	}
	for _, p := range parts {
		p.do, p.actual = (*account).correct, p.cost
	}
	return j.correct(ctx, parts)
}

func (j *joint) correct(ctx context.Context, parts []*part) error {
	if len(parts) == 0 {
		return nil
	}
	return j.transact(ctx, parts, true, func(rows map[string]*account) error {
		for _, p := range parts {
			if err := p.do(rows[string(p.row)], &p.operation); err != nil {
				return err
			}
		}
		return nil
	})
}

// transact reads the rows of all parts, changes them and writes them, in one transaction unless it only reads.
func (j *joint) transact(ctx context.Context, parts []*part, writes bool, change func(map[string]*account) error) error {
	ctx = wait.OrBackground(ctx)
	if err := ctx.Err(); err != nil {
		return ended(err, false)
	}
	inner, end := ctx, func() {}
	if j.timeout >= 0 {
		inner, end = context.WithTimeout(ctx, j.timeout)
	}
	defer end()
	var keys [][]byte
	plans := map[string]*plan{}
	for _, p := range parts {
		if plans[string(p.row)] == nil {
			keys, plans[string(p.row)] = append(keys, p.row), p.plan
		}
	}
	slices.SortFunc(keys, slices.Compare)
	for lost := 0; ; lost++ {
		missed := false
		attempt := func(tx *sql.Tx) error {
			missed = false
			rows, err := j.read(inner, tx, keys, plans)
			if err != nil {
				return err
			}
			if err = change(rows); err != nil {
				return err
			}
			wrote := false
			for _, key := range keys {
				a := rows[string(key)]
				if a.edits == 0 {
					continue
				}
				next := a.next()
				if next.equals(a.row) {
					continue
				}
				ok, err := j.store.write(inner, tx, key, a.row, next)
				if err != nil {
					return err
				}
				if wrote = true; !ok {
					missed = !a.found
					return errAgain
				}
			}
			if !wrote {
				return errNothing
			}
			return nil
		}
		var sent bool
		var err error
		if writes {
			sent, err = j.store.transact(inner, j.store.db.BeginTx, attempt)
		} else {
			err = attempt(nil)
		}
		switch {
		case err == nil || err == errNothing:
			return nil
		case (err == errAgain || conflict(err)) && inner.Err() == nil && (!missed || lost < mostLost):
			continue
		}
		if cause := outcome.EndOf(ctx); cause != nil {
			return ended(cause, sent)
		}
		if errors.Is(err, context.DeadlineExceeded) && j.timeout >= 0 {
			err = fmt.Errorf("no answer within %v (Options.Timeout): %w", j.timeout, err)
		}
		return j.store.classify(err, sent)
	}
}

// read reads the rows, and locks them in order if there is a transaction.
func (j *joint) read(ctx context.Context, tx *sql.Tx, keys [][]byte, plans map[string]*plan) (map[string]*account, error) {
	rows := make(map[string]*account, len(keys))
	for _, key := range keys {
		var r row
		var err error
		if tx == nil {
			r, err = j.readFresh(ctx, key)
		} else {
			r, err = j.lock(ctx, tx, key)
		}
		if err != nil {
			return nil, err
		}
		if rows[string(key)], err = open(r, plans[string(key)]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// lock reads a row and locks it, if it is there. A row that comes in between must not stay unlocked: its update would wait out of order.
func (j *joint) lock(ctx context.Context, tx *sql.Tx, key []byte) (r row, err error) {
	for {
		r, err = row{}, nil
		if r.found, err = scan(ctx, tx, j.store.sql.lock, key, &r.reading, &r.at, &r.state, &r.expires); err != nil || r.found {
			return r, err
		}
		if r, err = j.store.read(ctx, tx, key); err != nil || !r.found {
			return r, err
		}
	}
}

func (j *joint) readFresh(ctx context.Context, key []byte) (row, error) {
	conn, r, err := j.store.connected(ctx, key)
	if err == nil {
		_ = conn.Close()
	}
	return r, err
}
