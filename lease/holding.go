package lease

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
)

// holding is what this process holds of one key's budget, and what it knows of the key.
//
// Invariant: what is left of its batches, plus what open reservations may put back,
// plus what is being fetched, is at most Options.MaxBatch.
//
// Lock order: the table's lock, a holding's, that of the returns. No user code but a
// Clock runs under any of them.
type holding[K comparable] struct {
	key   K
	place *list.Element // in the order of eviction; guarded by the table's lock

	mu      sync.Mutex // guards the fields below
	dropped bool       // no longer in the table: holds nothing, and never will
	used    bool       // decided on since it was last looked at for eviction
	batches []*batch   // oldest first; the first may be spent
	left    int        // of all batches
	low     int        // when so little is left the next batch is fetched; below zero: not
	spent   int64      // units, ever
	local   uint64     // decisions made here, ever
	flight  *flight    // the fetch that is under way, or nil
	demand  int64      // units that callers want who wait for it along with its own
	told    told
	denial  denial
	sizer   sizer
	timer   *time.Timer // gives batches back; nil if none was ever held
	armed   bool        // the timer runs
}

// flight is one fetch of a batch, for a caller who waits for it or ahead of need.
type flight struct {
	order
	ctx    context.Context // of the call: ends a little before over
	over   context.Context // of those who wait: ends after Options.Timeout
	cancel context.CancelFunc
	n      int           // units that are asked for
	need   int           // of which the caller lacks so many; 0 if there is none
	done   chan struct{} // closed when the fetch has landed

	// Guarded by the holding's lock; out and failure may be read once done is closed.
	landed    bool
	abandoned bool    // the caller has left
	out       outcome // for the caller
	failure   error   // for those who have waited along: the remote could not decide

	fails failures.Set // what has failed in this flight
}

// outcome is what the flight has brought its caller.
func (fl *flight) outcome() outcome {
	out := fl.out
	out.failed = fl.order.failed.And(fl.fails.List())
	return out
}

// order is what a caller wants.
type order struct {
	cost    int
	keep    bool // to settle it later
	patient bool // to ask the remote limiter for a later instant if it denies
	brief   bool // no details

	failed failures.List // in fetches that the caller has waited for
}

// demand is the cost as a part of a sum that does not overflow.
func (o order) demand() int64 { return min(int64(o.cost), 1<<32) }

// outcome is what a caller gets.
type outcome struct {
	todo     todo
	decision ratelimit.Decision
	err      error
	claim    claim                  // if the caller wants to settle
	whole    *ratelimit.Reservation // instead of a claim: the whole batch is the caller's
	local    bool                   // decided without asking the remote limiter for it
	failed   failures.List          // in fetches that the caller has waited for
}

// context returns a context for what remains to be done.
func (out *outcome) context(ctx context.Context) context.Context {
	if len(out.failed) == 0 {
		return ctx
	}
	return failures.With(ctx, out.failed, nil)
}

// todo is what remains to be done about a decision.
type todo uint8

const (
	answered todo = iota // nothing
	again                // start again: the key has been dropped, or others were faster
	direct               // ask the remote limiter for this cost alone
)

// spendLocked spends cost of what is held, or nothing, and returns how many units
// came from the first batch: 0 if it has spent nothing.
func (h *holding[K]) spendLocked(cost int) int {
	if cost > h.left {
		return 0
	}
	h.left -= cost
	h.spent += int64(cost)
	h.used = true
	if b := h.batches[0]; cost <= b.left {
		b.left -= cost
		return cost
	}
	return h.spendAcrossLocked(cost)
}

// spendAcrossLocked spends a cost that is larger than what the first batch has left. Batches
// that are spent are let go: the remote limiter has charged all of them.
func (h *holding[K]) spendAcrossLocked(cost int) int {
	for {
		b := h.batches[0]
		n := min(cost, b.left)
		b.left -= n
		if cost -= n; cost == 0 {
			return n
		}
		h.batches = slices.Delete(h.batches, 0, 1)
	}
}

// claimLocked notes that n units of the first batch may be put back.
func (h *holding[K]) claimLocked(n int) claim {
	b := h.batches[0]
	b.open += n
	return claim{b, b.round, n}
}

// releaseLocked ends a claim and puts back as much of it as was not needed after all,
// if the batch is still held. It returns how much it has put back.
func (h *holding[K]) releaseLocked(c claim, unneeded int) int {
	b := c.batch
	if b == nil || b.round != c.round || !slices.Contains(h.batches, b) {
		return 0
	}
	n := min(unneeded, c.n)
	b.open -= c.n
	b.left += n
	h.left += n
	h.spent -= int64(n)
	return n
}

// roomLocked returns how many units may be fetched so that no more than most are held.
func (h *holding[K]) roomLocked(most int) int {
	for _, b := range h.batches {
		most -= b.open
	}
	return most - h.left
}

// forfeitLocked ends all claims: what is put back is lost.
func (h *holding[K]) forfeitLocked() {
	for _, b := range h.batches {
		b.open = 0
		b.round++
	}
}

// addLocked takes a batch in. The next is fetched when half of it is spent, unless it is
// all for one caller: a key with little traffic is not fetched for ahead of need.
func (h *holding[K]) addLocked(b *batch, need int) {
	if len(h.batches) > 0 && h.left == 0 {
		h.batches = h.batches[:0]
	}
	h.batches = append(h.batches, b)
	h.left += b.left
	if h.low = -1; b.size > max(1, need) {
		h.low = b.size / 2
	}
}

// removeLocked takes out the batches that are due, and returns those of which
// something is left to be given back.
func (h *holding[K]) removeLocked(due func(b *batch) bool) (leftover []*batch) {
	h.batches = slices.DeleteFunc(h.batches, func(b *batch) bool {
		if !due(b) {
			return false
		}
		if h.left -= b.left; b.left > 0 {
			leftover = append(leftover, b)
		}
		return true
	})
	if len(leftover) > 0 {
		h.sizer.forget()
	}
	return leftover
}
