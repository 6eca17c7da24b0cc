package ratelimit

import "errors"

// seat is a slot and what it asks, side by side to spare a call.
type seat[R any] struct {
	slot[R]
	*ask
}

// seats are the layers of one request, in order.
type seats[R any] []seat[R]

func (x seats[R]) clear() {
	for i := range x {
		x[i].clear()
	}
}

// find looks all accounts up again.
func (x seats[R]) find() {
	for i := range x {
		x[i].find()
	}
}

// lack reports whether keys have to be inserted for all layers to be charged.
func (x seats[R]) lack() bool {
	for i := range x {
		if x[i].wants() {
			return true
		}
	}
	return false
}

// insert adds the keys that are missing, and returns the first enforcing layer that found
// no room. A shadow layer whose key finds none is left out of the decision.
func (x seats[R]) insert(clock Clock) *seat[R] {
	for i := range x {
		if !x[i].wants() {
			continue
		}
		if x[i].err = x[i].insert(clock); x[i].err != nil && !x[i].shadow {
			return &x[i]
		}
	}
	return nil
}

// withdraw removes what insert has added, and ends the pins.
func (x seats[R]) withdraw(clock Clock) {
	for i := range x {
		x[i].withdraw(clock)
	}
}

// unpin ends this decision's pins: what it has inserted stays. The accounts are locked.
func (x seats[R]) unpin() {
	for i := range x {
		if a := x[i].ask; a.inserted || a.pinned {
			a.b.use.unpin()
			a.inserted, a.pinned = false, false
		}
	}
}

// expire makes accounts ask for their limits again if they were told to while this
// decision was under way with what LimitFor had said before. They are locked.
func (x seats[R]) expire() {
	for i := range x {
		if a := x[i].ask; a.b != nil && a.outdated() {
			a.b.expire()
		}
	}
}

// debit returns how to charge the layers of the caller's cost, for a reservation of
// cost 0 that turns out to have cost more.
func (x seats[R]) debit() func(actual int) error {
	var debits []func(int) error
	for i := range x {
		if x[i].p != nil && !x[i].own && !x[i].shadow {
			debits = append(debits, x[i].debit())
		}
	}
	return func(actual int) error {
		var errs []error
		for _, debit := range debits {
			errs = append(errs, debit(actual))
		}
		return errors.Join(errs...)
	}
}

// are reports whether these are the seats of the layers with the given indices.
func (x seats[R]) are(layers []int) bool {
	if len(x) != len(layers) {
		return false
	}
	for i := range x {
		if x[i].layer != layers[i] {
			return false
		}
	}
	return true
}
