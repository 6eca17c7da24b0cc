package ratelimittest

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
)

// joined is a stack's request. It has a key for each layer, and the layers' limiters belong to one [ratelimit.Joinable].
type joined struct {
	keys   [3]string // "" means that the layer does not apply
	actual int       // the real cost in layer 1
}

// stackOf returns a stack of up to three layers over the history's limiter.
// The second layer settles at its own cost, and the third is a shadow.
func (h *history) stackOf(layers int) *ratelimit.Layered[joined] {
	var all []ratelimit.Layer[joined]
	for i := range layers {
		y := ratelimit.By(h.lim, func(r joined) (string, error) {
			if r.keys[i] == "" {
				return "", ratelimit.SkipLayer
			}
			return r.keys[i], nil
		})
		if y.Shadow = i == 2; i == 1 {
			y.Actual = func(r joined) int { return r.actual }
		}
		all = append(all, y)
	}
	stack, err := ratelimit.All(all...)
	h.must(err == nil, joinIsTrue, "All fails over %d layers of one limiter: %v", layers, err)
	return stack
}

// playJoin charges two keys at once, either both or none. The combined decision must follow from the decisions on each key.
func playJoin(h *history) {
	stack, a, b := h.stackOf(2), h.newKey(), h.newKey()
	r := joined{keys: [3]string{a.key, b.key}}
	for range 12 {
		if h.chance(3) {
			p := a
			if h.chance(2) {
				p = b
			}
			if left := p.left().Remaining; left > 0 {
				p.spend(min(left, p.cost(left)))
			}
		}
		beforeA, beforeB := a.left(), b.left()
		cost := h.cost(min(beforeA.Remaining, beforeB.Remaining))
		fits := cost <= min(beforeA.Remaining, beforeB.Remaining)
		look := h.chance(3)
		call := map[bool]string{false: "Take", true: "Peek"}[look]
		var d ratelimit.Decision
		var err error
		if look {
			d, err = stack.Peek(a.ctx(), r, cost)
		} else {
			d, err = stack.Take(a.ctx(), r, cost)
		}
		h.note("%s of both keys, %d: %s", call, cost, described(d, err))
		h.reached(err)
		h.must(err == nil, joinIsTrue, "%s fails: %v", call, err)
		h.must(d.Allowed == fits, joinIsTrue, "%s of %d from both keys: Allowed is %v, where %d and %d remained", call, cost, d.Allowed, beforeA.Remaining, beforeB.Remaining)
		h.must(d.Allowed == (d.RetryAfter == 0), joinIsTrue, "%s of both keys: Allowed is %v and RetryAfter %v", call, d.Allowed, d.RetryAfter)
		afterA, afterB := a.left(), b.left()
		if !fits || look {
			h.must(afterA == beforeA && afterB == beforeB, joinIsTrue, "%s charges nothing, but the keys answer %s and %s, after %s and %s", call,
				described(afterA, nil), described(afterB, nil), described(beforeA, nil), described(beforeB, nil))
		} else {
			h.must(afterA.Remaining == beforeA.Remaining-cost && afterB.Remaining == beforeB.Remaining-cost, joinIsTrue,
				"%d were taken from both keys, of %d and %d, and %d and %d remain", cost, beforeA.Remaining, beforeB.Remaining, afterA.Remaining, afterB.Remaining)
		}
		h.must(d.Remaining == min(afterA.Remaining, afterB.Remaining) && d.ResetAfter == max(afterA.ResetAfter, afterB.ResetAfter), joinIsTrue,
			"%s of both keys answers %s, and the keys %s and %s", call, described(d, nil), described(afterA, nil), described(afterB, nil))
		h.pause(d)
	}
}

// playJoinSame charges one key in two layers: the costs must add up.
// Then it charges another key, while the first layer does not apply.
func playJoinSame(h *history) {
	stack, a := h.stackOf(2), h.newKey()
	half := h.limit.Capacity() / 2
	take := func(cost int) (ratelimit.Decision, error) {
		d, err := stack.Take(a.ctx(), joined{keys: [3]string{a.key, a.key}}, cost)
		h.note("Take of one key in two layers, %d: %s", cost, described(d, err))
		h.reached(err)
		return d, err
	}
	if half > 0 {
		d, err := take(half)
		h.must(err == nil && d.Allowed, joinIsTrue, "twice %d are not taken of a fresh key: %s", half, described(d, err))
		h.must(a.left().Remaining == h.limit.Capacity()-2*half, joinIsTrue, "twice %d were taken of %d, and %d remain", half, h.limit.Capacity(), a.left().Remaining)
	}
	_, err := take(half + 1)
	h.must(errors.Is(err, ratelimit.ErrExceedsLimit), joinIsTrue, "twice %d can never be taken of %d: %v", half+1, h.limit.Capacity(), err)
	b := h.newKey()
	d, err := stack.Take(b.ctx(), joined{keys: [3]string{"", b.key}}, 1)
	h.reached(err)
	h.must(err == nil && d.Allowed && b.left().Remaining == h.limit.Capacity()-1, joinIsTrue, "the first layer does not apply, and the second answers %s", described(d, err))
}

// playJoinErrors makes failing calls. They must charge neither key.
func playJoinErrors(h *history) {
	stack, a, b := h.stackOf(2), h.newKey(), h.newKey()
	for cost, target := range map[int]error{-1: ratelimit.ErrNegativeCost, h.limit.Capacity() + 1: ratelimit.ErrExceedsLimit} {
		d, err := stack.Take(a.ctx(), joined{keys: [3]string{a.key, b.key}}, cost)
		h.reached(err)
		h.must(errors.Is(err, target) && !d.Allowed, joinIsTrue, "cost %d of both keys: %s, want %q", cost, described(d, err), target)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	d, err := stack.Take(ended, joined{keys: [3]string{a.key, b.key}}, 1)
	h.must(errors.Is(err, context.Canceled) && !d.Allowed, joinIsTrue, "with a context that has ended: %s", described(d, err))
	for _, p := range []*testedKey{a, b} {
		h.must(p.left().Remaining == h.limit.Capacity(), joinIsTrue, "calls with errors have charged %s", p.name)
	}
}

// playJoinSettle settles a charge of two keys and a shadow, each at its own cost.
func playJoinSettle(h *history) {
	stack, a, b, shadow := h.stackOf(3), h.newKey(), h.newKey(), h.newKey()
	cost := h.cost(h.limit.Capacity())
	r := joined{keys: [3]string{a.key, b.key, shadow.key}, actual: h.rng.IntN(h.limit.Capacity() + 1)}
	res, err := stack.Reserve(a.ctx(), r, cost, 0)
	h.note("Reserve of three keys, %d: %s", cost, described(res.Decision, err))
	h.reached(err)
	h.must(err == nil && res.Allowed, joinIsTrue, "%d are not reserved of fresh keys: %s", cost, described(res.Decision, err))
	h.eachStands(stack, r, a, b, shadow)
	given := h.rng.IntN(h.limit.Capacity() + 1)
	err = res.Settle(given)
	h.note("Settle at %d, and %d in layer 1: %v", given, r.actual, err)
	h.reached(err)
	h.must(err == nil, joinIsTrue, "Settle fails: %v", err)
	if given == 0 {
		r.actual = 0 // Cancel settles at 0
	}
	for p, actual := range map[*testedKey]int{a: given, b: r.actual, shadow: given} {
		h.must(p.left().Remaining == h.limit.Capacity()-actual, joinIsTrue, "%d were reserved of %s and settled at %d, and %d of %d remain",
			cost, p.name, actual, p.left().Remaining, h.limit.Capacity())
	}
}

// eachStands compares each layer's decision with the key's own.
func (h *history) eachStands(stack *ratelimit.Layered[joined], r joined, keys ...*testedKey) {
	each, err := stack.PeekEach(context.Background(), r, 1)
	h.note("PeekEach: %v", err)
	h.reached(err)
	h.must(err == nil && len(each) == len(keys), joinIsTrue, "PeekEach returns %d decisions: %v", len(each), err)
	for i, p := range keys {
		own := p.left()
		h.must(each[i].Remaining == own.Remaining && each[i].ResetAfter == own.ResetAfter && each[i].Allowed == (own.Remaining > 0) && each[i].Limit == own.Limit, joinIsTrue,
			"a Peek of each layer answers %s in layer %d, and the key %s", described(each[i], nil), i, described(own, nil))
	}
}

// playJoinShadow checks that a shadow is charged the cost if it fits, after the key beside it has allowed the request.
func playJoinShadow(h *history) {
	stack, a, shadow := h.stackOf(3), h.newKey(), h.newKey()
	r := joined{keys: [3]string{a.key, "", shadow.key}}
	shadow.spend(h.limit.Capacity())
	d, err := stack.Take(a.ctx(), r, 1)
	h.reached(err)
	h.must(err == nil && d.Allowed, joinIsTrue, "a shadow without budget denies a request: %s", described(d, err))
	h.must(a.left().Remaining == h.limit.Capacity()-1, joinIsTrue, "a shadow has kept another key from being charged")
	twin := h.newKey()
	a.spend(a.left().Remaining)
	r.keys[2] = twin.key
	d, err = stack.Take(a.ctx(), r, 1)
	h.reached(err)
	h.must(err == nil && !d.Allowed && twin.left().Remaining == h.limit.Capacity(), joinIsTrue, "a shadow is charged for a request that is denied: %s", described(d, err))
}

// playJoinPlan changes the limit between a request's calls to Limit
// and Decide. All keys are decided under the limit returned by Limit.
func playJoinPlan(h *history) {
	j, err := h.has.join([]ratelimit.Joining{{Limiter: h.lim}, {Limiter: h.lim}})
	h.must(err == nil, joinIsTrue, "Join fails: %v", err)
	var charges []ratelimit.Charge
	for i, p := range []*testedKey{h.newKey(), h.newKey()} {
		limit, plan, err := j.Limit(i, p.key, ratelimit.Limit{})
		h.must(err == nil && limit == h.limit, joinIsTrue, "Joint.Limit returns %v, %v", limit, err)
		charges = append(charges, ratelimit.Charge{Limiter: i, Key: p.key, Limit: limit, Plan: plan, Cost: 1})
	}
	resolved, other := h.limit, h.similar()
	if !h.cfg.accepts(other) {
		return
	}
	h.newKey().set(other)
	_, err = j.Decide(context.Background(), charges, ratelimit.JointRequest{MaxDelay: time.Hour})
	h.reached(err)
	h.must(err == nil, joinIsTrue, "Decide fails: %v", err)
	for _, c := range charges {
		h.must(c.Decided && c.Decision.Allowed && c.Decision.Limit == resolved && c.Decision.Remaining == resolved.Capacity()-1, joinIsTrue,
			"SetLimit(%v) was called after Limit had returned %v, and Decide answers %s under %v", other, resolved, described(c.Decision, nil), c.Decision.Limit)
	}
}

// stranger is a limiter of an unknown store.
type stranger struct{ ratelimit.Limiter[string] }

func (stranger) Join([]ratelimit.Joining) (ratelimit.Joint, error) {
	return nil, errors.New("a limiter of the test suite decides with no other")
}

// playJoinStranger combines the engine's limiter with a limiter of another store.
func playJoinStranger(h *history) {
	a := h.newKey()
	key := func(string) (string, error) { return a.key, nil }
	_, err := ratelimit.All(ratelimit.By(h.lim, key), ratelimit.By[string](&stranger{h.lim}, key))
	h.must(err != nil, joinIsTrue, "Join takes a limiter of another store, %T", &stranger{})
}

// playJoinCrowd charges the same two keys in several goroutines, in both
// orders. Each call must charge both or none, and none may wait forever.
func playJoinCrowd(h *history) {
	stack, a, b := h.stackOf(2), h.newKey(), h.newKey()
	units := min(h.limit.Capacity(), 50)
	if rest := h.limit.Capacity() - units; rest > 0 {
		a.spend(rest)
		b.spend(rest)
	}
	var t tally
	h.atOnce(func(i int) {
		r := joined{keys: [3]string{a.key, b.key}}
		if i%2 == 1 {
			r.keys[0], r.keys[1] = r.keys[1], r.keys[0]
		}
		for range 1 + 2*units/crowd {
			d, err := stack.Take(context.Background(), r, 1)
			if err == nil && d.Allowed {
				t.got.Add(1)
			}
			if errors.Is(err, ratelimit.ErrUnavailable) {
				t.unknown.Add(1)
			}
		}
	})
	got, unknown := int(t.got.Load()), int(t.unknown.Load())
	h.note("%d goroutines have taken %d of both keys", crowd, got)
	for _, p := range []*testedKey{a, b} {
		spent := units - p.left().Remaining
		h.must(spent >= got && spent <= got+unknown, joinIsTrue, "%d were taken at once from both keys, and %d of %s", got, spent, p.name)
	}
	h.must(got+unknown >= units, joinIsTrue, "only %d of %d were taken at once", got, units)
}
