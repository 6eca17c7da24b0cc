package model

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// Most defects were found where two features met. So a random history contains calls of all kinds:
// the calls in model_property_test.go, Wait, SetLimit, Refresh, and stacks of two keys. Each key has
// a model. The table may be too small. A failure is reported as the shortest history still failing.

const (
	opWait opKind = opSweep + 1 + iota
	opSetLimit
	opRefresh
	opStack
)

// move is a history's call on one key.
type move struct {
	op
	key, other string          // other is a stack's second key
	limit      ratelimit.Limit // SetLimit's limit
}

func (m move) String() string {
	switch m.kind {
	case opWait:
		return fmt.Sprintf("at %d: Wait(%s, %d)", m.raw, m.key, m.n)
	case opSetLimit:
		return fmt.Sprintf("at %d: SetLimit(%+v)", m.raw, m.limit)
	case opRefresh:
		return fmt.Sprintf("at %d: Refresh(%s)", m.raw, m.key)
	case opStack:
		return fmt.Sprintf("at %d: All(%s, %s).Take(%d)", m.raw, m.key, m.other, m.n)
	}
	return m.key + ": " + m.op.String()
}

// setting is a history's configuration.
type setting struct {
	limit ratelimit.Limit
	keys  int // if above 1, the clock never steps back, because a forgotten key also forgets its time
	max   int // the size of a table too small for all keys; otherwise 0

	refuse   bool // whether the small table refuses new keys
	remember int  // how many evicted keys are remembered
}

// evicts reports whether the table forgets keys with spending. The models do not know which.
func (s setting) evicts() bool { return s.max > 0 && !s.refuse }

// world is a limiter, and its keys' models.
type world struct {
	*rig
	setting
	now    ratelimit.Limit // the limit in force
	judges map[string]*judge
	stack  *ratelimit.Layered[[2]string]
}

func newWorld(t testing.TB, s setting) *world {
	w := &world{rig: newRig(t, s.limit), setting: s, now: s.limit, judges: map[string]*judge{}}
	opts := ratelimit.Options[string]{Clock: w.clock, MaxKeys: s.max, Remember: s.remember}
	if s.refuse {
		opts.OnFull = ratelimit.RefuseNew
	}
	if s.keys > 1 && !s.evicts() {
		opts.IdleTTL = math.MaxInt64 // no key expires, because the models cannot know which fresh keys leave for new ones
	}
	w.limiter = newWith(t, s.limit, opts)
	layer := func(i int) ratelimit.Layer[[2]string] {
		return ratelimit.By(w.limiter, func(r [2]string) (string, error) { return r[i], nil })
	}
	var err error
	w.stack, err = ratelimit.All(layer(0), layer(1))
	require.NoError(t, err)
	return w
}

func (w *world) judge(key string) *judge {
	j := w.judges[key]
	if j == nil {
		j = newJudge(w.now)
		w.judges[key] = j
	}
	if !j.known {
		j.limit, j.base = w.now, newSpending(w.now)
	}
	return j
}

// play makes a call. It returns how the answer differs from the model's, or "" if they agree.
func (w *world) play(m move) string {
	w.clock.now.Store(m.raw)
	w.key = m.key
	switch m.kind {
	case opSetLimit:
		return w.setLimit(m)
	case opRefresh:
		w.limiter.Refresh(m.key)
		return ""
	case opStack:
		return w.playStack(m)
	case opSweep:
		return w.playSweep(m)
	}
	if !w.makes(m) {
		return ""
	}
	reported, peeked := w.limiter.Peek(context.Background(), m.key, m.n)
	got := w.request(m)
	if text := agrees(m, reported, peeked, got); text != "" {
		return text
	}
	return w.compare(m, got)
}

// makes reports whether the history can make the call. A reservation settles only on its own key.
func (w *world) makes(m move) bool {
	if m.kind != opSettle && m.kind != opCancel {
		return true
	}
	r, own := w.judge(m.key).made[m.id]
	return (own || w.evicts()) && w.made[m.id] != nil && !w.judge(m.key).convertsRefund(r, w.now)
}

// convertsRefund reports whether a settlement gives back a token bucket's units reserved
// under other figures. The limiter converts such refunds and rounds them down, while the
// model gives nothing back. internal/meter compares such refunds with a replay.
func (j *judge) convertsRefund(r *receipt, now ratelimit.Limit) bool {
	pending := j.known && j.limit.Named("") != now.Named("") // the key adopts the limit at its next decision
	if r != nil && r.changed && pending && j.limit.Algorithm == ratelimit.AlgorithmTokenBucket {
		return true
	}
	return r != nil && now.Algorithm == ratelimit.AlgorithmTokenBucket && (r.changed || pending)
}

func (w *world) request(m move) answer {
	if m.kind != opWait {
		return w.do(m.op)
	}
	ctx, stop := context.WithDeadline(context.Background(), time.Now().Add(time.Hour))
	stop()
	if m.n > 0 {
		if d, err := w.limiter.Peek(context.Background(), m.key, m.n); err == nil && d.Allowed && d.Delay == 0 {
			ctx = context.Background()
		}
	}
	err := w.limiter.Wait(ctx, m.key, m.n)
	return answer{d: ratelimit.Decision{Allowed: err == nil}, err: err, len: w.limiter.Stats().Keys}
}

// agrees returns how a Peek differs from the Take after it at the same instant, or "" if they agree.
func agrees(m move, reported ratelimit.Decision, peeked error, got answer) string {
	if m.kind != opTake || m.n < 1 || got.err != nil {
		return ""
	}
	if peeked != nil || reported.Allowed != got.d.Allowed || reported.RetryAfter != got.d.RetryAfter || reported.Delay != got.d.Delay {
		return fmt.Sprintf("Peek said %+v (%v), and Take answers %+v", reported, peeked, got.d)
	}
	return ""
}

// compare makes the same call on the key's model. If the table is too small, the models do not
// know which keys it forgets. Then Peek and Take must agree, and the table must keep its bound.
func (w *world) compare(m move, got answer) string {
	if n := w.limiter.Stats().Keys; w.max > 0 && n > w.max {
		return fmt.Sprintf("%d keys are tracked, of %d at most", n, w.max)
	}
	if w.refuse {
		if text, refused := w.refusal(m, got); refused || text != "" {
			return text
		}
	}
	if !w.evicts() {
		return w.differs(w.judge(m.key), m, got)
	}
	if want := newModel(w.now).check(m.n); m.kind <= opReserve && m.kind != opAllow && !sameError(got.err, want) {
		return fmt.Sprintf("the error is %v, want %v", got.err, want)
	}
	return ""
}

func (w *world) differs(j *judge, m move, got answer) string {
	if m.kind == opWait && !(m.n > 0 && got.err == nil) {
		if got.err == nil {
			return "a Wait whose context has ended does not fail"
		}
		return "" // the call must have charged nothing; later answers show it
	}
	if m.kind == opWait {
		m.kind = opAllow
	}
	j.adopts(w.now, m.op)
	want := j.withLimit(w.now, m.op)
	if j.blurry {
		if m.kind == opReserve {
			j.reserved(m.op, got)
		}
		return ""
	}
	if w.keys > 1 {
		got.len, want.len = 0, 0
	}
	if m.kind == opAllow {
		got.err, want.err = nil, nil
	}
	if !j.accepts(m.op, got, want) {
		return fmt.Sprintf("got:  %+v\nwant: %+v", got, want)
	}
	return ""
}

// withLimit returns the model's answer to a call. If the call, such as Peek,
// does not adopt a new limit, a copy of the model under that limit answers.
func (j *judge) withLimit(now ratelimit.Limit, o op) answer {
	settles := o.kind == opSettle || o.kind == opCancel || o.kind == opReset
	if !j.known || j.limit == now || settles {
		return j.do(o)
	}
	c := *j.model
	c.base, c.ahead = j.base.clone(), slices.Clone(j.ahead)
	c.adopt(now, c.at(o.raw))
	look := &judge{model: &c, made: j.made, sweptAt: j.sweptAt}
	a := look.do(o)
	j.blurry = j.blurry || c.blurry
	return a
}

// adopts changes the key's limit if the call does. These calls do: a decision, even at a
// cost of 0 or above the capacity, an Adjust, and a settlement charging as Adjust does.
func (j *judge) adopts(now ratelimit.Limit, o op) {
	if !j.known || j.limit == now || !j.charges(now, o) {
		return
	}
	old := j.limit
	if j.adopt(now, j.at(o.raw)); old.Named("") != now.Named("") {
		j.keepReceipts()
	}
}

func (j *judge) charges(now ratelimit.Limit, o op) bool {
	switch o.kind {
	case opTake, opAllow, opReserve, opStack:
		if o.n > 0 && o.n <= now.Capacity() {
			return true
		}
		// The call only returns the key's state. The key adopts the limit, so that the
		// returned times are true. A fresh key has no times, and equal figures change none.
		return o.n >= 0 && j.limit.Named("") != now.Named("") && !j.freshAt(o.raw)
	case opAdjust:
		return o.n != 0
	case opSettle:
		r := j.made[o.id]
		return r != nil && (r.free && !r.settled && o.n > 0 || j.late(r, o.n) > 0)
	}
	return false
}

func (w *world) setLimit(m move) string {
	if err := w.limiter.SetLimit(m.limit); err != nil {
		return fmt.Sprint("SetLimit fails: ", err)
	}
	w.now = m.limit
	return ""
}

// playSweep sweeps. If there are several keys, none expires, so none is dropped.
func (w *world) playSweep(m move) string {
	swept, want := w.limiter.Sweep(), 0
	if w.evicts() {
		return ""
	}
	if w.keys == 1 {
		j := w.judge(m.key)
		kept := j.outlives(m.raw)
		if j.blurry = j.blurry || m.raw < j.sweptAt; j.blurry {
			if swept > 0 {
				j.forget()
				j.blurry, j.sweptAt = false, m.raw
			}
			return ""
		}
		if swept == 0 && kept {
			return ""
		}
		want = j.sweep(m.raw)
	}
	if swept != want {
		return fmt.Sprintf("Sweep dropped %d keys, want %d", swept, want)
	}
	return ""
}

// playStack takes a cost from two keys, or from none.
func (w *world) playStack(m move) string {
	d, err := w.stack.Take(context.Background(), [2]string{m.key, m.other}, m.n)
	keys := slices.Compact([]string{m.key, m.other})
	m.n = max(-1, min(m.n, math.MaxInt/2)) // twice this must not overflow
	cost := m.n * (3 - len(keys))          // a single key is charged twice
	allowed := true
	for _, key := range keys {
		j := w.judge(key)
		o := m.op
		o.kind, o.n = opPeek, cost
		j.adopts(w.now, op{kind: opStack, raw: m.raw, n: cost})
		want := j.withLimit(w.now, o)
		allowed = allowed && want.err == nil && want.d.Allowed
		if j.blurry || w.evicts() {
			w.blur(keys)
			w.forgetReceipts(keys)
			return ""
		}
	}
	if allowed && cost > 0 && w.refuse {
		if text, refused := w.full(m.raw, keys, err); refused || text != "" {
			return text
		}
	}
	if (err == nil && d.Allowed) != allowed {
		return fmt.Sprintf("got:  %+v, %v\nwant: allowed: %v", d, err, allowed)
	}
	for _, key := range keys {
		if j := w.judge(key); allowed && cost > 0 {
			j.take(m.raw, cost, -1, true)
		} else if cost > 0 && err == nil && j.known {
			j.record(j.at(m.raw))
		}
	}
	return ""
}

// blur marks the models of some keys as unknown.
func (w *world) blur(keys []string) {
	for _, key := range keys {
		w.judge(key).blurry = true
	}
}

// ---- drawing, and reporting ----

// drawn converts bytes to moves.
type drawn struct {
	*script
	setting
}

func draw(data []byte) *drawn {
	s := &script{data: data}
	s.pickLimit()
	d := &drawn{script: s, setting: setting{limit: s.limit, keys: 1 + s.byte()%2*3}}
	if s.onward = d.keys > 1; s.onward {
		switch s.byte() % 3 {
		case 0:
			d.max, d.remember = 2, d.byte()%3*50
		case 1:
			d.max, d.refuse = 2, true
		}
	}
	return d
}

func (d *drawn) draw() move {
	key := func() string { return string(rune('a' + d.byte()%d.keys)) }
	m := move{key: key()}
	switch b := d.byte(); {
	case b < 200:
		m.op = d.next()
		return m
	case b < 215:
		m.kind, m.n = opWait, d.cost()
	case b < 235:
		m.kind, m.limit = opSetLimit, d.another()
	case b < 242:
		m.kind = opRefresh
	default:
		m.kind, m.n, m.other = opStack, d.cost(), key()
		if d.keys == 1 {
			m.kind = opTake
		}
	}
	d.step()
	m.raw = d.raw
	return m
}

// another returns a limit with another name, other figures or another algorithm.
func (d *drawn) another() ratelimit.Limit {
	l := d.script.limit
	switch d.byte() % 4 {
	case 0:
		return l.Named(string(rune('a' + d.byte()%3)))
	case 1:
		l.Rate.Units = 1 + d.byte()%30
	case 2:
		if l.Period != (ratelimit.Period{}) {
			l.Period = Periods[d.byte()%len(Periods)].Period
		} else {
			l.Rate.Per = time.Duration(1 + d.byte())
		}
	default:
		other := &script{data: []byte{byte(d.byte()), byte(d.byte()), byte(d.byte()), byte(d.byte()), byte(d.byte()), byte(d.byte())}}
		other.pickLimit()
		l = other.limit
	}
	if l.Validate() != nil || int64(l.RefillTime()) > Year/2 {
		return d.script.limit // the models have no debt capped at a Century
	}
	d.script.limit = l
	return l
}

// playHistory plays a history from data, and reports a failure as the shortest history still failing.
func playHistory(t testing.TB, data []byte, most int) {
	d := draw(data)
	w := newWorld(t, d.setting)
	var moves []move
	for len(d.data) > 0 && len(moves) < most {
		m := d.draw()
		if moves = append(moves, m); w.play(m) != "" {
			short := shortest(moves, func(less []move) bool { return failure(t, d.setting, less) != "" })
			require.Fail(t, "the model answers otherwise", "%+v\n%s%s", d.setting, listed(short), failure(t, d.setting, short))
		}
		if reported, err := w.limiter.Peek(context.Background(), m.key, 1); err == nil {
			d.last = reported
		}
	}
}

// failure plays moves, and describes the first wrong answer. If all are right, it returns "".
func failure(t testing.TB, s setting, moves []move) string {
	w := newWorld(t, s)
	for _, m := range moves {
		if text := w.play(m); text != "" {
			return text
		}
	}
	return ""
}

// shortest removes the moves not needed for a failure. It tries halves first, and then smaller parts.
func shortest[M any](moves []M, fails func([]M) bool) []M {
	for size := len(moves) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(moves); {
			if less := slices.Delete(slices.Clone(moves), i, i+size); fails(less) {
				moves = less
			} else {
				i += size
			}
		}
	}
	return moves
}

func listed[M any](moves []M) string {
	var b strings.Builder
	for _, m := range moves {
		fmt.Fprintln(&b, m)
	}
	return b.String()
}

func TestAllCallsTogetherAnswerAsTheModels(t *testing.T) {
	for seed := range Rounds(3_000) {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { playHistory(t, seeded(9<<32|seed, 500), 100) }) {
			return
		}
	}
}

// FuzzHistory reads its input as a limit, a number of keys and a history of all kinds of calls.
func FuzzHistory(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seeded(10<<32|seed, 200))
	}
	f.Fuzz(func(t *testing.T, data []byte) { playHistory(t, data, 80) })
}
