package sqllimit

import (
	"cmp"
	"context"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Each calls visit with each key that has a row, and [Limiter.Peek]'s result for a cost of 1, until visit returns false. Some
// keys are fresh. It writes nothing and holds no connection while visit runs. A key appears once or not at all if it comes or
// goes. A key with an invalid limit or a damaged row is left out; Each then returns the first such error at the end.
func (l *Limiter) Each(ctx context.Context, visit func(key string, d ratelimit.Decision) bool) error {
	l.check()
	if visit == nil {
		return optional.Nil("sqllimit: Each: visit")
	}
	ctx = wait.OrBackground(ctx)
	var first error
	for r, err := range l.rows(ctx) {
		if err != nil {
			return err
		}
		key := strings.TrimPrefix(string(r.key), l.space)
		d, err := l.standing(key, r.row)
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		if !visit(key, d) {
			break
		}
		if err := ctx.Err(); err != nil {
			return ended(err, false)
		}
	}
	return first
}

// rows iterates over the limiter's rows in their keys' order, a page at a time. An error is the last element.
func (l *Limiter) rows(ctx context.Context) iter.Seq2[keyRow, error] {
	return func(yield func(keyRow, error) bool) {
		for from, more := []byte(l.space), true; more; {
			page, err := l.page(ctx, from)
			if err != nil {
				if cause := outcome.EndOf(ctx); cause != nil {
					err = ended(cause, false)
				} else {
					err = l.store.classify(err, false)
				}
				yield(keyRow{}, err)
				return
			}
			for _, r := range page {
				if !yield(r, nil) {
					return
				}
			}
			if more = len(page) == pageRows; more {
				from = append(page[len(page)-1].key, 0)
			}
		}
	}
}

// page reads rows from a key on. It takes longer than a decision, so its timeout is at least a second.
func (l *Limiter) page(ctx context.Context, from []byte) ([]keyRow, error) {
	if l.timeout >= 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, max(l.timeout, time.Second))
		defer end()
	}
	return l.store.rows(ctx, l.store.db, l.store.sql.page, from, behind(l.space))
}

// standing returns Peek's result for a row and a cost of 1.
func (l *Limiter) standing(key string, r row) (d ratelimit.Decision, err error) {
	p, err := l.planFor(key)
	if err != nil {
		return d, err
	}
	if !p.tracks() {
		capacity := p.limit.Capacity()
		return ratelimit.Decision{Limit: p.limit, Allowed: capacity > 0, Remaining: capacity}, nil
	}
	a, err := open(r, p)
	if err != nil {
		return d, l.store.classify(err, false)
	}
	o := &operation{plan: p, cost: 1, ahead: math.MaxInt64, peek: true}
	if err = a.take(o); err != nil {
		return d, l.store.classify(err, false)
	}
	return o.decision, nil
}
