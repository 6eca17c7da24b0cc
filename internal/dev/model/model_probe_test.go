package model

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// A Decision's three figures predict the results of later calls. These
// tests make the calls, each on its own limiter with the same history.

// replay makes the ops on a new limiter, and returns it.
func replay(t testing.TB, l ratelimit.Limit, ops []op) *rig {
	r := newRig(t, l)
	for _, o := range ops {
		r.do(o)
	}
	return r
}

// probe checks the last op's answer.
type probe struct {
	*testing.T
	limit ratelimit.Limit
	ops   []op
	last  op
	d     ratelimit.Decision
}

// then returns the op's answer if it is made some time later.
func (p *probe) then(later time.Duration, o op) ratelimit.Decision {
	o.raw += int64(later)
	return replay(p, p.limit, p.ops).do(o).d
}

func (p *probe) retryAfter() {
	if p.d.RetryAfter == 0 {
		return
	}
	again := p.last
	if again.kind == opPeek {
		again.kind = opTake
	}
	require.True(p, p.then(p.d.RetryAfter, again).Allowed, "RetryAfter: denied at it\n%s", p)
	require.False(p, p.then(p.d.RetryAfter-1, again).Allowed, "RetryAfter: allowed before it\n%s", p)
}

func (p *probe) remaining() {
	o := op{kind: opTake, raw: p.last.raw, n: p.d.Remaining}
	require.True(p, p.then(0, o).Allowed, "Remaining: denied\n%s", p)
	o.n++
	require.False(p, p.then(0, o).Allowed, "Remaining: one more is allowed\n%s", p)
}

// resetAfter compares the key after ResetAfter with a new key, over a further history.
func (p *probe) resetAfter() {
	at := p.last.raw + int64(p.d.ResetAfter)
	used, fresh := replay(p, p.limit, p.ops), newRig(p, p.limit)
	known := used.limiter.Stats().Keys == 1
	capacity := p.limit.Capacity()
	for i, n := range []int{0, 1, capacity/2 + 1, capacity/3 + 1, 1, capacity} {
		o := op{kind: opTake, raw: at + int64(i)*int64(Span(p.limit))/4, n: n}
		want := fresh.do(o)
		require.Equal(p, want.d, used.do(o).d, "ResetAfter: not as a key never seen\n%s", p)
	}
	require.Equal(p, known, p.sweep(0) == 1, "ResetAfter: not swept at it\n%s", p)
	if p.d.ResetAfter > 0 {
		require.Zero(p, p.sweep(-1), "ResetAfter: swept before it\n%s", p)
		require.Equal(p, time.Duration(1), p.then(p.d.ResetAfter-1, op{kind: opPeek, raw: p.last.raw}).ResetAfter, "%s", p)
	}
}

func (p *probe) sweep(later time.Duration) int {
	o := op{kind: opSweep, raw: p.last.raw + int64(p.d.ResetAfter+later)}
	return replay(p, p.limit, p.ops).do(o).swept
}

func (p *probe) String() string { return fmt.Sprintf("limit: %v\n%s%+v", p.limit, history(p.ops), p.d) }

// TestEveryFigureIsTrueToTheNanosecond needs no model, so it also covers histories not specified by the model.
func TestEveryFigureIsTrueToTheNanosecond(t *testing.T) {
	testsize.Arithmetic(t)
	for seed := range Rounds(600) {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { probeScript(t, seeded(1<<32|seed, 200)) }) {
			return
		}
	}
}

func probeScript(t *testing.T, data []byte) {
	s := &script{data: data}
	s.pickLimit()
	r := newRig(t, s.limit)
	var ops []op
	for len(s.data) > 0 && len(ops) < 40 {
		o := s.next()
		ops = append(ops, o)
		a := r.do(o)
		if o.kind > opReserve || o.kind == opAllow {
			continue
		}
		if s.last = a.d; a.err == nil {
			p := &probe{T: t, limit: s.limit, ops: ops, last: o, d: a.d}
			p.retryAfter()
			p.remaining()
			p.resetAfter()
		}
	}
}
