package model

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// The histories in this file call a stack whose layers all use one limiter, and the limiter itself. The layers have their
// own limits and costs, and some are shadows. Each key has a model. The models' answers determine the stack's answer:
//
//   - Enforcing layers with the same key make one charge, under the first limit
//     that counts. Unlimited and Blocked count nothing, and leave the key as it is.
//   - A shadow makes a charge of its own. A key's charges all use the limit of its first one, and enforcing
//     charges come before shadows. Shadows are decided last, and only if all enforcing charges fit.
//   - A decision, even a denial, puts a tracked key under the limit. If the cost
//     is 0, or can never fit, a fresh key stays as it is. Peek changes nothing.
//   - Adjust puts a key under the limiter's limit, and so does the settlement of a reservation of cost 0. But a key under
//     a request's limit stays there until a decision. A request's limit equal to the limiter's counts as the limiter's.

// layering is a layer without its limit. Each request carries the limit.
type layering struct {
	key    int // the index in demand.keys
	own    int // the layer's own cost; if 0, the caller's cost counts
	shadow bool
}

// demand is a request to a stack of these layers.
type demand struct {
	keys   [2]string
	limits [4]ratelimit.Limit
}

// layerMove is a call to the stack or to the limiter.
type layerMove struct {
	op
	stacked bool
	demand
	limit ratelimit.Limit // SetLimit's limit
}

func (m layerMove) String() string {
	switch {
	case m.kind == opSetLimit:
		return fmt.Sprintf("at %d: SetLimit(%v)", m.raw, m.limit)
	case m.stacked:
		return fmt.Sprintf("stack, keys %v, limits %v, %v", m.keys, m.limits, m.op)
	}
	return m.keys[0] + ": " + m.op.String()
}

var (
	none = ratelimit.Limit{}

	// layerLimits are the limits of limiters and requests: buckets and windows with different units, times and capacities.
	layerLimits = []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(3), 6), ratelimit.TokenBucket(ratelimit.Per(7, 11*time.Second), 10),
		ratelimit.FixedWindow(ratelimit.PerSecond(5)), ratelimit.FixedWindow(ratelimit.Per(10, 4*time.Second)),
		ratelimit.TokenBucket(ratelimit.PerSecond(3), 3), ratelimit.FixedWindow(ratelimit.Per(10, time.Second)),
		ratelimit.SlidingLog(ratelimit.PerSecond(6)), ratelimit.SlidingCounter(ratelimit.Per(7, 2*time.Second)),
		ratelimit.LeakyBucket(ratelimit.PerSecond(3), 6),
	}
	requestLimits = append([]ratelimit.Limit{none, none, none, ratelimit.Unlimited(), ratelimit.Blocked()}, layerLimits...)
)

// query is one decision's cost for one key: a model's charge.
type query struct {
	key       string
	limit     ratelimit.Limit
	ofRequest bool
	shadow    bool
	cost      int
	own       int
	shares    int
	insert    bool // a layer inserts the key if all costs fit
}

func (c *query) never() bool { return c.cost > c.limit.Capacity() }

func counts(l ratelimit.Limit) bool { return l.Capacity() > 0 && l.Capacity() < math.MaxInt }

// hold is a reservation's charge to one key. Without a receipt its cost is 0, and only a settlement charges the key.
type hold struct {
	query
	receipt *receipt
}

// pile is a limiter, a stack of layers on it, and its keys' models.
type pile struct {
	*rig
	form   []layering
	stack  *ratelimit.Layered[demand]
	now    ratelimit.Limit
	judges map[string]*judge
	under  map[string]bool // the keys under a request's limit
	holds  map[int][]hold
	fogged bool // the models do not specify the call's result
	fogs   int  // such calls
}

func newPile(t testing.TB, limit ratelimit.Limit, form []layering) *pile {
	p := &pile{rig: newRig(t, limit), form: form, now: limit, judges: map[string]*judge{}, under: map[string]bool{}, holds: map[int][]hold{}}
	p.limiter = newWith(t, limit, ratelimit.Options[string]{Clock: p.clock, IdleTTL: math.MaxInt64})
	layers := make([]ratelimit.Layer[demand], len(form))
	for i, y := range form {
		layers[i] = ratelimit.By(p.limiter, func(r demand) (string, error) { return r.keys[y.key], nil })
		layers[i].Limit = func(r demand) ratelimit.Limit { return r.limits[i] }
		if y.own > 0 {
			layers[i].Cost = func(demand) int { return y.own }
		}
		layers[i].Shadow = y.shadow
	}
	var err error
	p.stack, err = ratelimit.All(layers...)
	require.NoError(t, err)
	return p
}

// judge returns a key's model. An untracked key begins under the given limit.
func (p *pile) judge(key string, limit ratelimit.Limit) *judge {
	j := p.judges[key]
	if j == nil {
		j = newJudge(limit)
		p.judges[key] = j
	}
	if !j.known && counts(limit) {
		j.limit, j.base = limit, newSpending(limit)
	}
	return j
}

// adopt changes the limit of a tracked key.
func (p *pile) adopt(j *judge, key string, limit ratelimit.Limit, ofRequest bool, raw int64) {
	if !j.known {
		return
	}
	if p.under[key] = ofRequest; j.limit != limit {
		j.adopt(limit, j.at(raw))
		j.keepReceipts()
	}
}

func (j *judge) freshAt(raw int64) bool {
	now := j.at(raw)
	return j.all().reset(now) <= now && (j.aside.units == 0 || j.aside.until <= now)
}

// viewed returns the model as it would be under another limit.
func (p *pile) viewed(j *judge, limit ratelimit.Limit, raw int64) *model {
	c := *j.model
	c.base, c.ahead = j.base.clone(), slices.Clone(j.ahead)
	if c.known && c.limit != limit {
		c.adopt(limit, c.at(raw))
	}
	p.fogged = p.fogged || c.blurry
	return &c
}

// limitOf returns the limit in force for a request's limit, and whether it is the request's own.
func (p *pile) limitOf(limit ratelimit.Limit) (ratelimit.Limit, bool) {
	if limit == none || limit == p.now {
		return p.now, false
	}
	return limit, true
}

// charges adds up a request's costs by key.
func (p *pile) charges(r demand, cost int) (firm, shadows []query) {
	enter := func(i int, to *[]query) {
		y := p.form[i]
		c := query{key: r.keys[y.key], shadow: y.shadow, cost: cost}
		c.limit, c.ofRequest = p.limitOf(r.limits[i])
		if y.own > 0 && cost > 0 {
			c.cost = y.own
		}
		if y.own > 0 {
			c.own = c.cost
		} else {
			c.shares = 1
		}
		if counts(c.limit) {
			for _, other := range [][]query{firm, shadows} {
				if k := slices.IndexFunc(other, func(x query) bool { return x.key == c.key && counts(x.limit) }); k >= 0 {
					if c.limit, c.ofRequest = other[k].limit, other[k].ofRequest; !y.shadow {
						other[k].insert = other[k].insert || c.cost > 0 && c.cost <= c.limit.Capacity()
						other[k].cost, other[k].own, other[k].shares = other[k].cost+c.cost, other[k].own+c.own, other[k].shares+c.shares
						return
					}
					break
				}
			}
		}
		c.insert = c.cost > 0 && c.cost <= c.limit.Capacity()
		*to = append(*to, c)
	}
	for i, y := range p.form {
		if !y.shadow {
			enter(i, &firm)
		}
	}
	for i, y := range p.form {
		if y.shadow {
			enter(i, &shadows)
		}
	}
	return firm, shadows
}

// decide makes the stack's decision from the models.
func (p *pile) decide(m layerMove) (d ratelimit.Decision, held []hold, err error) {
	firm, shadows := p.charges(m.demand, m.n)
	fits, ahead := true, int64(-1)
	if m.kind == opReserve {
		ahead = max(0, int64(m.ahead))
	}
	free := m.n == 0
	for _, c := range firm {
		if c.never() {
			fits, free = false, true
			if err == nil {
				err = ratelimit.ErrExceedsLimit
				if c.limit.Algorithm == ratelimit.AlgorithmBlocked {
					err = ratelimit.ErrBlocked
				}
			}
		}
	}
	answers, models := make([]ratelimit.Decision, len(firm)), make([]*model, len(firm))
	for i, c := range firm {
		if !counts(c.limit) {
			answers[i] = ratelimit.Decision{Allowed: !c.never(), Limit: c.limit, Remaining: c.limit.Capacity()}
			continue
		}
		j := p.judge(c.key, c.limit)
		switch {
		case m.kind == opPeek:
		case !free:
			if p.adopt(j, c.key, c.limit, c.ofRequest, m.raw); j.known {
				j.record(j.at(m.raw))
			}
		case j.known && !j.freshAt(m.raw):
			p.adopt(j, c.key, c.limit, c.ofRequest, m.raw)
		}
		models[i] = p.viewed(j, c.limit, m.raw)
		answers[i], _, _ = models[i].take(m.raw, c.cost, queued(c.limit, ahead), false)
		fits = fits && answers[i].Allowed
		p.fogged = p.fogged || j.blurry || models[i].blurry
	}
	if fits && m.kind != opPeek && !free {
		held = p.spend(m.raw, ahead, append(firm, shadows...))
	}
	sum, vague, never := ratelimit.Decision{Allowed: fits, Remaining: math.MaxInt}, false, false
	for i, c := range firm {
		a := &answers[i]
		if counts(c.limit) {
			if held != nil {
				models[i] = p.judges[c.key].model
			}
			if at := models[i].at(m.raw); at >= models[i].last {
				models[i].standing(m.raw, a)
			}
		}
		room := max(0, a.Remaining-c.own)
		if c.shares > 0 {
			room /= c.shares
		} else if a.Remaining >= c.own {
			room = math.MaxInt
		}
		if cost := c.own + c.shares; room == 0 {
			next := time.Duration(0)
			if counts(c.limit) && cost <= c.limit.Capacity() {
				next = time.Duration(models[i].next(m.raw, models[i].at(m.raw), int64(cost)) - m.raw)
			}
			never = never || next == 0
			sum.NextAfter = max(sum.NextAfter, next)
		}
		sum.Remaining = min(sum.Remaining, room)
		if sum.Debt = max(sum.Debt, a.Debt); a.Debt == unspecified {
			vague = true
		}
		sum.RetryAfter, sum.ResetAfter, sum.Delay = max(sum.RetryAfter, a.RetryAfter), max(sum.ResetAfter, a.ResetAfter), max(sum.Delay, a.Delay)
	}
	if never {
		sum.NextAfter = 0
	}
	if vague {
		sum.Debt = unspecified
	}
	if !fits {
		sum.Delay = 0
	}
	if err != nil {
		sum.RetryAfter = 0
	}
	if free && err == nil && m.kind == opReserve {
		held = p.later(m.demand)
	}
	return sum, held, err
}

// queued returns how far ahead a stack may book under a limit. Only a leaky bucket may book.
func queued(l ratelimit.Limit, ahead int64) int64 {
	if l.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return ahead
	}
	return 0
}

// spend charges all enforcing layers, and then each shadow that fits.
func (p *pile) spend(raw, ahead int64, all []query) []hold {
	held := []hold{}
	for _, c := range all { // keys are inserted before any spends
		if j := p.judge(c.key, c.limit); counts(c.limit) && c.insert && !j.known {
			j.record(j.at(raw))
			p.under[c.key] = c.ofRequest
		}
	}
	for _, c := range all {
		if !counts(c.limit) || c.never() {
			continue
		}
		j := p.judge(c.key, c.limit)
		p.adopt(j, c.key, c.limit, c.ofRequest, raw)
		if _, r, err := j.take(raw, c.cost, queued(c.limit, ahead), true); r != nil && err == nil {
			held = append(held, hold{query: c, receipt: r})
		}
		p.fogged = p.fogged || j.blurry
	}
	return held
}

// later returns the holds of a reservation of cost 0. A settlement at more charges them.
func (p *pile) later(r demand) []hold {
	held := []hold{}
	firm, _ := p.charges(r, 0)
	for _, c := range firm {
		for range c.shares {
			held = append(held, hold{query: c})
		}
	}
	return held
}

// adjust charges or grants under the request's limit, or under the limiter's present limit.
func (p *pile) adjust(raw int64, key string, limit ratelimit.Limit, ofRequest bool, delta int) {
	if !ofRequest {
		limit = p.now
	}
	if !counts(limit) || delta == 0 {
		return
	}
	j := p.judge(key, limit)
	switch {
	case !j.known && delta < 0:
		return
	case !j.known:
		p.under[key] = ofRequest
	case !ofRequest && !p.under[key]:
		p.adopt(j, key, limit, false, raw)
	}
	j.adjust(raw, delta)
	p.fogged = p.fogged || j.blurry
}

// settle settles a reservation made by the stack.
func (p *pile) settle(raw int64, id, actual int) {
	actual = max(0, actual)
	for _, h := range p.holds[id] {
		if h.receipt == nil {
			p.adjust(raw, h.key, h.limit, h.ofRequest, actual)
			continue
		}
		cost := h.shares * actual
		if actual > 0 {
			cost += h.own
		}
		j := p.judges[h.key]
		j.settle(raw, h.receipt, cost)
		p.fogged = p.fogged || j.blurry
	}
	delete(p.holds, id)
}

// play makes a call. It returns how the answer differs from the models', or "" if they agree.
func (p *pile) play(m layerMove) (text string) {
	p.clock.now.Store(m.raw)
	p.fogged = false
	defer func() {
		if p.fogged {
			text = ""
			p.lift()
		}
	}()
	if m.kind == opSetLimit {
		p.now = m.limit
		if err := p.limiter.SetLimit(m.limit); err != nil {
			return err.Error()
		}
		return ""
	}
	var got, want answer
	if m.stacked {
		ok := false
		if got, want, ok = p.playStack(m); !ok {
			return ""
		}
	} else if p.key = m.keys[0]; m.kind == opReset {
		p.limiter.Reset(context.Background(), p.key)
		if j := p.judges[p.key]; j != nil {
			j.reset()
		}
		return ""
	} else {
		ok := false
		if got, want, ok = p.playKey(m); !ok {
			return ""
		}
	}
	if m.kind <= opReserve && m.n == 0 {
		got.d.Delay, want.d.Delay = 0, 0
	}
	tracked := 0
	for _, j := range p.judges {
		tracked += j.len()
	}
	got.d.Limit, want.d.Limit = none, none
	if !agree(got.d, want.d) || !sameError(got.err, want.err) || p.limiter.Stats().Keys != tracked {
		return fmt.Sprintf("got:  %+v, %v, %d keys\nwant: %+v, %v, %d keys", got.d, got.err, p.limiter.Stats().Keys, want.d, want.err, tracked)
	}
	return ""
}

// lift resets all keys after a call whose result the models do not specify.
func (p *pile) lift() {
	p.fogs++
	for key, j := range p.judges {
		p.limiter.Reset(context.Background(), key)
		j.reset()
		j.blurry = false
	}
	p.holds, p.made, p.judges = map[int][]hold{}, map[int]*ratelimit.Reservation{}, map[string]*judge{}
}

func (p *pile) playStack(m layerMove) (got, want answer, ok bool) {
	ctx := context.Background()
	switch m.kind {
	case opTake:
		got.d, got.err = p.stack.Take(ctx, m.demand, m.n)
	case opPeek:
		got.d, got.err = p.stack.Peek(context.Background(), m.demand, m.n)
	case opReserve:
		r, err := p.stack.Reserve(ctx, m.demand, m.n, m.ahead)
		got.d, got.err, p.made[m.id] = r.Decision, err, r
	case opAdjust:
		for i, y := range p.form {
			if y.own == 0 && !y.shadow {
				limit, ofRequest := p.limitOf(m.limits[i])
				p.adjust(m.raw, m.keys[y.key], limit, ofRequest, m.n)
			}
		}
		if got.err = p.stack.Adjust(context.Background(), m.demand, m.n); m.n < 0 {
			p.forgetMade()
		}
		return got, want, true
	}
	var held []hold
	if want.d, held, want.err = p.decide(m); m.kind == opReserve {
		p.hold(m.id, held)
	}
	return got, want, true
}

// hold records a reservation's charges, so that keepReceipts can adjust them.
func (p *pile) hold(id int, held []hold) {
	p.holds[id] = held
	for i, h := range held {
		if h.receipt != nil {
			p.judges[h.key].made[16*id+i] = h.receipt
		}
	}
}

// settles reports whether the models specify the result of settling a reservation.
func (p *pile) settles(id int) bool {
	for i, h := range p.holds[id] {
		if h.receipt != nil {
			j := p.judges[h.key]
			if h.receipt.life == j.life && j.made[16*id+i] != h.receipt || j.convertsRefund(h.receipt, j.limit) || j.convertsRefund(h.receipt, p.now) {
				return false
			}
		}
	}
	return p.made[id] != nil && p.holds[id] != nil
}

// forgetMade drops all reservations. After a grant it is not specified how many of their units the grant gave back.
func (p *pile) forgetMade() { p.made, p.holds = map[int]*ratelimit.Reservation{}, map[int][]hold{} }

func (p *pile) playKey(m layerMove) (got, want answer, ok bool) {
	if m.kind == opSettle || m.kind == opCancel {
		if !p.settles(m.id) {
			return got, want, false
		}
		if m.kind == opCancel {
			m.n = 0
		}
		got = p.do(m.op)
		p.settle(m.raw, m.id, m.n)
		delete(p.made, m.id)
		return got, want, true
	}
	if !counts(p.now) {
		return got, want, false
	}
	got = p.do(m.op)
	if m.kind == opAdjust {
		if p.adjust(m.raw, p.key, p.now, false, m.n); m.n < 0 {
			p.forgetMade()
		}
		return got, want, true
	}
	j := p.judge(p.key, p.now)
	decides := m.n > 0 && m.n <= p.now.Capacity()
	if m.kind != opPeek && (decides || j.known && !j.freshAt(m.raw)) {
		p.adopt(j, p.key, p.now, false, m.raw)
	}
	use := j.model
	if m.kind == opPeek || !decides {
		use = p.viewed(j, p.now, m.raw)
	}
	ahead := int64(-1)
	if m.kind == opReserve {
		ahead = max(0, int64(m.ahead))
	}
	knew := j.known
	var r *receipt
	want.d, r, want.err = use.take(m.raw, m.n, ahead, m.kind != opPeek)
	if j.known && !knew {
		p.under[p.key] = false
	}
	p.fogged = p.fogged || use.blurry || j.blurry
	if m.kind == opReserve {
		held := []hold{{query: query{key: p.key, limit: p.now, cost: m.n, shares: 1}, receipt: r}}
		if r == nil {
			held = []hold{}
		} else if r.free {
			held[0].receipt = nil
		}
		p.hold(m.id, held)
	}
	if want.err != nil {
		got.d.Limit, want.d.Limit = none, none
	}
	return got, want, true
}

// ---- drawing ----

type pileDraw struct {
	*rand.Rand
	raw  int64
	made int
	last ratelimit.Decision
	few  [4][2]ratelimit.Limit // each layer's possible limits
}

func (r *pileDraw) limitOf(from []ratelimit.Limit) ratelimit.Limit {
	n := len(from)
	if r.IntN(4) > 0 {
		n -= 3 // makes token buckets and fixed windows more frequent
	}
	return from[r.IntN(n)]
}

func (r *pileDraw) form() []layering {
	form := make([]layering, 2+r.IntN(3))
	for i := range form {
		form[i] = layering{key: r.IntN(5) / 3, shadow: r.IntN(5) < 2}
		if r.IntN(5) == 0 {
			form[i].own = 1 + r.IntN(2)
		}
		r.few[i] = [2]ratelimit.Limit{r.limitOf(requestLimits), r.limitOf(requestLimits)}
	}
	return form
}

func (r *pileDraw) draw() (m layerMove) {
	switch b := r.IntN(10); {
	case b < 4:
	case b < 7:
		r.raw += r.Int64N(int64(2 * time.Second))
	case b < 9:
		r.raw += int64([]time.Duration{r.last.RetryAfter, r.last.ResetAfter, r.last.Delay}[r.IntN(3)])
	default:
		r.raw += r.Int64N(int64(15 * time.Second))
	}
	key := func() string { return string(rune('a' + r.IntN(2))) }
	m.raw, m.keys, m.n = r.raw, [2]string{key(), key()}, 1+r.IntN(4)
	if r.IntN(12) == 0 {
		m.n = []int{0, 6, 11}[r.IntN(3)]
	}
	m.stacked = r.IntN(3) > 0
	for i := range m.limits {
		m.limits[i] = r.few[i][r.IntN(2)]
	}
	switch b := r.IntN(40); {
	case b < 12:
		m.kind = opTake
	case b < 16:
		m.kind = opPeek
	case b < 25:
		m.kind, m.id = opReserve, r.made
		m.ahead = []time.Duration{0, time.Second, 3 * time.Second, time.Minute}[r.IntN(4)]
		r.made++
	case b < 33:
		m.kind, m.id, m.stacked, m.n = opSettle+opKind(r.IntN(2)), r.IntN(r.made+1), false, r.IntN(6)
	case b < 35:
		if m.kind = opAdjust; r.IntN(3) == 0 {
			m.n = -m.n
		}
	case b < 36:
		m.kind, m.stacked = opReset, false
	default:
		m.kind, m.limit = opSetLimit, r.limitOf(requestLimits[3:])
	}
	return m
}

func playPile(t testing.TB, seed uint64) (fogs int) {
	r := &pileDraw{Rand: rand.New(rand.NewPCG(testsize.Seed(seed), 12))}
	limit, form := r.limitOf(layerLimits), r.form()
	p := newPile(t, limit, form)
	fails := func(moves []layerMove) string {
		p := newPile(t, limit, form)
		for _, m := range moves {
			if text := p.play(m); text != "" {
				return text
			}
		}
		return ""
	}
	var moves []layerMove
	for range 60 {
		m := r.draw()
		if moves = append(moves, m); p.play(m) != "" {
			short := shortest(moves, func(less []layerMove) bool { return fails(less) != "" })
			require.Fail(t, "the model answers otherwise", "seed %d, %v, layers %+v\n%s%s", seed, limit, form, listed(short), fails(short))
		}
		if d, err := p.stack.Peek(context.Background(), m.demand, 1); err == nil {
			r.last = d
		}
	}
	return p.fogs
}

func TestAStackOnOneLimiterAnswersAsTheModelsOfItsKeys(t *testing.T) {
	fogs := 0
	for seed := range Rounds(20_000) {
		fogs += playPile(t, 13<<32|seed)
	}
	t.Logf("%d calls have an outcome that the models do not specify", fogs)
}
