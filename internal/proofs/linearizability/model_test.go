package linearizability

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// limiter is the limiter under test.
type limiter interface {
	ratelimit.Limiter[string]
	Adjust(ctx context.Context, key string, delta int) error
	Reset(ctx context.Context, key string) error
	Sweep() int
}

type kind int

const (
	allow kind = iota
	take
	adjust
	reset
)

// call is one operation on one key, at the clock's reading.
type call struct {
	kind kind
	key  string
	n    int
	at   time.Duration
}

// answer is a call's result.
type answer struct {
	allowed  bool
	decision ratelimit.Decision
	err      string
	full     bool // whether the error is ErrTableFull
}

// on makes the call.
func (c call) on(l limiter) (a answer) {
	var err error
	switch c.kind {
	case allow:
		a.allowed = l.Allow(c.key, c.n)
	case take:
		a.decision, err = l.Take(context.Background(), c.key, c.n)
	case adjust:
		err = l.Adjust(context.Background(), c.key, c.n)
	case reset:
		err = l.Reset(context.Background(), c.key)
	}
	if err != nil {
		a.err, a.full = err.Error(), errors.Is(err, ratelimit.ErrTableFull)
	}
	return a
}

func (c call) String() string {
	return fmt.Sprintf("%v %s(%s, %d)", c.at, [...]string{"Allow", "Take", "Adjust", "Reset"}[c.kind], c.key, c.n)
}

// oracle computes the results of calls made one after the other.
type oracle struct {
	mu    sync.Mutex // guards the fields below, because porcupine checks several keys at once
	l     *ratelimit.Keyed[string]
	clock ratelimittest.Clock
}

func newOracle(limit ratelimit.Limit) *oracle {
	o := new(oracle)
	o.l = ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: &o.clock}))
	return o
}

// past is a key's calls since it was fresh, the last one first. Nil is a
// fresh key. A history must not forget a key more often than it evicts.
type past struct {
	before    *past
	call      call
	forgotten int
}

// after returns a call's result on a key with this past, and the key's state before the call.
func (o *oracle) after(p *past, c call) (answer, ratelimit.Decision) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.l.Reset(context.Background(), c.key)
	o.clock.Set(c.at)
	o.replay(p)
	o.clock.Set(c.at)
	was, _ := o.l.Peek(context.Background(), c.key, 1)
	return c.on(o.l), was
}

func (o *oracle) replay(p *past) {
	if p == nil || p.call.key == "" {
		return
	}
	o.replay(p.before)
	o.clock.Set(p.call.at)
	p.call.on(o.l)
}

// step returns the key's possible pasts after the call, or none if the answer
// is impossible. A past with an empty call belongs to a forgotten key.
func (o *oracle) step(p *past, c call, a answer, evictions int) (next []any) {
	for _, from := range o.perhapsForgotten(p, evictions) {
		want, was := o.after(from, c)
		switch {
		case a.full || c.kind == allow && !a.allowed && want.allowed && evictions < 0:
			if was.ResetAfter == 0 {
				next = append(next, from) // only an untracked key may be refused
			}
		case a == want:
			next = append(next, &past{from, c, from.forgotten})
		}
	}
	return next
}

func (o *oracle) perhapsForgotten(p *past, evictions int) []*past {
	if p.call.key != "" && p.forgotten < evictions {
		return []*past{p, {forgotten: p.forgotten + 1}}
	}
	return []*past{p}
}

// model is the sequential specification. Negative evictions stand for a table that refuses new keys instead.
func (o *oracle) model(evictions int) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: byKey,
		Init:      func() []any { return []any{new(past)} },
		Step: func(state, in, out any) []any {
			return o.step(state.(*past), in.(call), out.(answer), evictions)
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v: %+v", in, out) },
	}
	return m.ToModel()
}

func byKey(history []porcupine.Operation) (parts [][]porcupine.Operation) {
	index := make(map[string]int)
	for _, op := range history {
		key := op.Input.(call).key
		i, ok := index[key]
		if !ok {
			i = len(parts)
			index[key] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], op)
	}
	return parts
}
