package sqllimit

import (
	"context"
	"math"
	"strings"

	"github.com/weir-go/ratelimit"
)

// Each visits the keys that have a row, with what [Limiter.Peek] says to a cost of 1, until visit returns false.
// It reads a thousand rows at a time, writes nothing, and holds no connection while visit runs. A key that comes or
// goes meanwhile is visited once or not at all. A fresh key keeps its row for some time, so a list of who is limited
// leaves out those that are Allowed.
//
// The error is that of the database, or of the context. If the limit of a key is invalid, or its row is not one
// of this package, Each goes on, and returns the first such error at the end.
func (l *Limiter) Each(ctx context.Context, visit func(key string, d ratelimit.Decision) bool) error {
	l.check()
	ctx = orBackground(ctx)
	var first error
	for from, more := []byte(l.space), true; more; {
		page, err := l.store.rows(ctx, l.store.db, l.store.sql.page, from, behind(l.space))
		if err != nil {
			if cause := endOf(ctx); cause != nil {
				return ended(cause, false)
			}
			return l.store.classify(err, false)
		}
		more = len(page) == pageRows
		for _, r := range page {
			key := strings.TrimPrefix(string(r.key), l.space)
			d, err := l.standing(key, r.row)
			if err != nil {
				if first == nil {
					first = err
				}
				continue
			}
			if !visit(key, d) {
				return first
			}
			if err := ctx.Err(); err != nil {
				return ended(err, false)
			}
		}
		if more {
			from = append(page[len(page)-1].key, 0)
		}
	}
	return first
}

// standing returns what Peek says of a row to a cost of 1.
func (l *Limiter) standing(key string, r row) (d ratelimit.Decision, err error) {
	p, err := l.planFor(key)
	if err != nil {
		return d, err
	}
	if !p.tracks() {
		capacity := p.limit.Capacity()
		return ratelimit.Decision{Limit: p.limit, Allowed: capacity > 0, Remaining: capacity}, nil
	}
	e, err := open(r, p)
	if err != nil {
		return d, l.store.classify(err, false)
	}
	o := &order{plan: p, cost: 1, ahead: math.MaxInt64, peek: true}
	if err = e.take(o); err != nil {
		return d, l.store.classify(err, false)
	}
	return o.decision, nil
}
