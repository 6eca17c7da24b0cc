package lease

import (
	"errors"
	"sync"

	"github.com/weir-go/ratelimit"
)

const (
	// returnWorkers is the maximum number of goroutines for giving batches back.
	returnWorkers = 16
	// maxReturns is the maximum number of batches waiting to be given back.
	// Batches beyond it are lost. Then too much may be denied, but never allowed.
	maxReturns = 1 << 16
)

// returns gives batches back in the background. It starts goroutines as needed. They end when nothing is left to give back.
type returns struct {
	settle   func(res *ratelimit.Reservation, actual int) error
	describe func() ratelimit.Description // describes the remote limiter

	mu       sync.Mutex // guards the fields below; acquired after any other lock
	waiting  []*returned
	underWay map[*returned]bool // batches waiting or being given back now
	workers  int
	batches  uint64 // batches given back in all
	units    uint64
	failed   uint64 // batches not given back because of errors
	failure  error  // the last error of such a batch
	lost     uint64 // units not given back or put back
	forfeits uint64 // batches given up before their claims were closed
	waits    int    // units left in batches that wait for their claims
}

// returned is a batch on its way back.
type returned struct {
	batch *batch
	done  chan struct{} // closed when the remote limiter has answered
}

var errFull = errors.New("too many batches wait to be given back")

// give gives a batch back. The batch must not change afterwards.
func (r *returns) give(b *batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) >= maxReturns {
		r.failLocked(b, errFull)
		return
	}
	g := &returned{batch: b, done: make(chan struct{})}
	r.waiting = append(r.waiting, g)
	r.underWay[g] = true
	if r.workers < returnWorkers {
		r.workers++
		go r.work()
	}
}

// idle adds n to the held units, as far as they can neither be spent nor given back yet.
func (r *returns) idle(n int) {
	if n != 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.waits += n
	}
}

// forfeit counts a batch given up before its claims were closed.
func (r *returns) forfeit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forfeits++
}

// lose counts lost units.
func (r *returns) lose(n int) {
	if n > 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lost += uint64(n)
	}
}

// work gives batches back until none is waiting.
func (r *returns) work() {
	for g := r.next(); g != nil; g = r.next() {
		lost, err := r.settleOne(g.batch)
		r.finish(g, lost, err)
	}
}

func (r *returns) next() *returned {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		r.waiting = nil
		r.workers--
		return nil
	}
	g := r.waiting[0]
	r.waiting[0] = nil
	r.waiting = r.waiting[1:]
	return g
}

// settleOne gives a batch back. Without an error, it reports whether the units count as lost all the same.
func (r *returns) settleOne(b *batch) (lost bool, err error) {
	defer caught(&err)
	err = r.settle(b.res, b.spent())
	return b.outlived(r.describe().Limits), err
}

// outlived reports whether the remote limiter now has another algorithm, by its Describe or its last
// answer about the key. After such a change, a store may give back nothing of an earlier batch and return
// no error. If the remote limiter has several limits, each answer describes one, so no change is visible.
func (b *batch) outlived(limits []ratelimit.Limit) bool {
	if len(limits) != 1 {
		return false
	}
	now := limits[0]
	if now == (ratelimit.Limit{}) && b.latest != nil {
		now = *b.latest
	}
	switch now.Algorithm {
	case ratelimit.AlgorithmUnlimited, ratelimit.AlgorithmBlocked: // the key's spending stays as it is
		return false
	}
	return b.res.Limit != (ratelimit.Limit{}) && now != (ratelimit.Limit{}) && now.Algorithm != b.res.Limit.Algorithm
}

func (r *returns) finish(g *returned, lost bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.underWay, g)
	switch {
	case err != nil:
		r.failLocked(g.batch, err)
	case lost:
		r.lost += uint64(g.batch.left)
	default:
		r.batches++
		r.units += uint64(g.batch.left)
	}
	close(g.done)
}

func (r *returns) failLocked(b *batch, err error) {
	r.failed++
	r.failure = err
	r.lost += uint64(b.left)
}

// ended returns how many batches were given back and how many failed, and the last error.
func (r *returns) ended() (batches, failed uint64, failure error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batches, r.failed, r.failure
}

// all returns the batches on their way back.
func (r *returns) all() (all []*returned) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g := range r.underWay {
		all = append(all, g)
	}
	return all
}
