// Package pace keeps a client within its own limit and obeys its servers' answers, for any protocol. Each key has a queue,
// first come, first served. The HTTP transport and the gRPC client interceptors convert servers' answers into [Advice].
//
// For each request, call these methods of a [Pacer]:
//
//	p := pacer.Arrive(ctx, key)
//	defer pacer.Leave(p)
//	err := pacer.Await(p, request) // then send it
//	pacer.Learn(p, advice, time.Now())
//	pacer.Again(p)                 // to send it once more, after another Await
package pace

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// Options are the settings of [New].
type Options[R any] struct {
	Cost    func(R) int               // returns a request's cost in the limiter; if nil, the cost is 1
	MaxWait time.Duration             // a request's maximum wait; 0 for as long as its context allows
	MaxKeys int                       // the maximum number of keys whose servers' answers are kept; defaults to DefaultMaxKeys
	Units   func(context.Context) int // returns a request's units in budgets that count units; if nil, it has 1
	Longest time.Duration             // the longest wait accepted from a server; defaults to MaxWait
	// MaxInFlight is the maximum number of requests of a key in flight. A
	// request is in flight until Leave or Again. If 0, there is no maximum.
	MaxInFlight int
}

// CheckOptions returns an error about the first invalid number among
// a client's options. The text begins with the package and the type.
func CheckOptions(of string, maxServerWait time.Duration, maxRetries, maxInFlight, maxKeys int) error {
	return cmp.Or(
		optional.NotNegative(of+".MaxServerWait", maxServerWait, "the default"),
		optional.NotNegative(of+".MaxRetries", maxRetries, "none"),
		optional.NotNegative(of+".MaxInFlight", maxInFlight, "any number"),
		optional.NotNegative(of+".MaxKeys", maxKeys, "the default"),
	)
}

// DefaultMaxKeys is the default of MaxKeys.
const DefaultMaxKeys = 4096

// Pacer holds all keys' queues. It is safe for concurrent use, and starts no goroutine.
type Pacer[R any] struct {
	pkg     string
	limiter ratelimit.Reserver[R]
	opts    Options[R]
	stats   counters

	mu    sync.Mutex
	lines map[string]*line
	idle  idleLines // lines without users
}

// New returns a Pacer. Its errors' texts begin with pkg, the name of the calling package.
func New[R any](pkg string, l ratelimit.Reserver[R], opts Options[R]) *Pacer[R] {
	opts.MaxKeys, opts.Longest = cmp.Or(opts.MaxKeys, DefaultMaxKeys), cmp.Or(opts.Longest, MaxWait)
	return &Pacer[R]{pkg: pkg, limiter: l, opts: opts, lines: map[string]*line{}}
}

// Arrive puts a request at the end of its key's queue. When the request is done, call [Pacer.Leave].
func (pc *Pacer[R]) Arrive(ctx context.Context, key string) *Place {
	return pc.ArriveAfter(ctx, key, 0)
}

// ArriveAfter is like Arrive, for a request that has already waited for a part of MaxWait.
func (pc *Pacer[R]) ArriveAfter(ctx context.Context, key string, waited time.Duration) *Place {
	units := 1
	if pc.opts.Units != nil {
		units = max(0, pc.opts.Units(ctx))
	}
	left := pc.opts.MaxWait
	if left > 0 {
		left = max(1, left-waited)
	}
	return pc.line(key).arrive(ctx, int64(units), left)
}

// Await waits until the request may be sent and has left the queue. The error wraps
// [context.DeadlineExceeded] or the context's error. It wraps [ratelimit.ErrLimited] if MaxWait
// is too short or a leaky bucket's queue is full. Other errors come from the limiter's Reserve.
func (pc *Pacer[R]) Await(p *Place, r R) error {
	waited := false
	for {
		switch step, until := p.next(time.Now()); step {
		case stepSend:
			declare(p.ctx, p.spent)
			p.flies = true
			pc.stats.inFlight.Add(1)
			pc.stats.sent.Add(1)
			if p.repeated {
				pc.stats.retried.Add(1)
			}
			return nil
		case stepFail:
			err := p.late(until)
			if pc.giveUp(p) {
				return pc.failed(p, err)
			}
		case stepBook:
			if err := pc.book(p, r); err != nil && pc.giveUp(p) {
				return pc.failed(p, err)
			}
		case stepFollow:
			if !waited {
				waited = true
				pc.stats.waited.Add(1)
			}
			if err := pc.follow(p); err != nil && pc.giveUp(p) {
				return pc.failed(p, err)
			}
		case stepWait:
			if !waited {
				waited = true
				pc.stats.waited.Add(1)
			}
			if err := p.sleep(until); err != nil && pc.giveUp(p) {
				return pc.failed(p, err)
			}
		}
	}
}

// book reserves an instant in the limiter, as far ahead as the request can wait. If a limiter with bookings
// ahead denies, its RetryAfter is the time until it could book equally far ahead: too late. So book calls
// it again without booking ahead: then RetryAfter is the time until the cost is allowed at once.
func (pc *Pacer[R]) book(p *Place, r R) error {
	cost := 1
	if pc.opts.Cost != nil {
		cost = pc.opts.Cost(r)
	}
	left := p.left(time.Now())
	res, err := pc.look(p, r, cost), error(nil)
	looked := res != nil
	if !looked {
		res, err = pc.limiter.Reserve(p.ctx, r, cost, left)
	}
	if err == nil && res != nil && !res.Allowed && !looked && left < math.MaxInt64 {
		res, err = pc.limiter.Reserve(p.ctx, r, cost, 0)
	}
	cancel, err := p.booked(res, err, cost, time.Now())
	pc.cancel(p.line, cancel)
	return err
}

// look peeks at a limiter that has denied a place, before the denial's RetryAfter has
// passed. It returns the present denial, or nil if the place must call Reserve. So a
// queue notices grants and changes of limits, and does not count a denial each time.
func (pc *Pacer[R]) look(p *Place, r R, cost int) *ratelimit.Reservation {
	left := p.deniedFor(time.Now())
	if left <= 0 {
		return nil
	}
	d, err := ratelimit.Peek(p.ctx, ratelimit.Limiter[R](pc.limiter), r, cost)
	switch {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, ratelimit.ErrUnavailable):
		d = ratelimit.Decision{RetryAfter: left}
	case err != nil, d.Allowed, d.RetryAfter <= 0:
		return nil
	}
	return ratelimit.NewReservation(d, nil)
}

// giveUp removes a request that stops waiting from the queue. It reports false if the request has been sent.
func (pc *Pacer[R]) giveUp(p *Place) bool {
	bookings, left := p.giveUp()
	pc.cancel(p.line, bookings)
	return left
}

// failed counts an unsent request, and marks its context.
func (pc *Pacer[R]) failed(p *Place, err error) error {
	if !p.repeated {
		pc.stats.failed.Add(1)
	}
	outcome.MarkRefused(p.ctx)
	return err
}

// Learn obeys an answer received at an instant. If there is no answer, pass the zero Advice.
func (pc *Pacer[R]) Learn(p *Place, a Advice, now time.Time) {
	if a.Refused || a.Wait > 0 {
		pc.stats.refused.Add(1)
	}
	bookings := p.line.learn(p.seq, a.bounded(pc.opts.Longest, now), now)
	p.landed.Store(true)
	pc.cancel(p.line, bookings)
}

// Again puts an answered request back into the queue, before all later ones. The request is no longer in flight.
func (pc *Pacer[R]) Again(p *Place) {
	pc.landed(p)
	pc.cancel(p.line, p.again())
}

// landed counts a request as no longer in flight.
func (pc *Pacer[R]) landed(p *Place) {
	if p.flies {
		pc.stats.inFlight.Add(^uint64(0))
	}
}

// Refund gives back the charge of a refused request. The next attempt is charged again.
func (pc *Pacer[R]) Refund(p *Place) {
	if p.spent != nil && p.spent.Settle(0) != nil {
		pc.stats.unsettled.Add(1)
	}
	p.spent = nil
}

// Reset forgets the answers of a key's server. Requests that wait because of these answers go on.
func (pc *Pacer[R]) Reset(key string) {
	pc.mu.Lock()
	l := pc.lines[key]
	if l != nil {
		pc.useLocked(l)
	}
	pc.mu.Unlock()
	if l == nil {
		return
	}
	defer pc.quit(l)
	l.reset()
}

// ResetAll is Reset for all keys with a prefix.
func (pc *Pacer[R]) ResetAll(prefix string) {
	var keys []string
	pc.mu.Lock()
	for key := range pc.lines {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	pc.mu.Unlock()
	for _, key := range keys {
		pc.Reset(key)
	}
}

// cancel cancels bookings, beginning with the last, because no other booking
// depends on it. No request of the key books before cancel has returned.
func (pc *Pacer[R]) cancel(l *line, bookings []*ratelimit.Reservation) {
	if len(bookings) == 0 {
		return
	}
	defer l.cancelled()
	for _, res := range bookings {
		defer pc.undo(res) // defer cancels the last one first, and all even if one panics
	}
}

func (pc *Pacer[R]) undo(res *ratelimit.Reservation) {
	if res.Cancel() != nil {
		pc.stats.unsettled.Add(1)
	}
}

// line returns the key's queue. The caller must call quit when it is done.
func (pc *Pacer[R]) line(key string) *line {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	l := pc.lines[key]
	if l == nil {
		if len(pc.lines) >= pc.opts.MaxKeys {
			pc.forgetLocked()
		}
		l = &line{pkg: pc.pkg, key: strings.Clone(key), slots: pc.opts.MaxInFlight} // a copy, so that the key is not part of a longer text
		pc.lines[l.key] = l
		l.users++
		return l
	}
	pc.useLocked(l)
	return l
}

// useLocked begins one use of a line.
func (pc *Pacer[R]) useLocked(l *line) {
	if l.users++; l.users == 1 {
		heap.Remove(&pc.idle, l.at)
	}
}

// Leave ends the use of a place from [Pacer.Arrive]. It drops the line if the line is no longer needed.
func (pc *Pacer[R]) Leave(p *Place) {
	defer pc.quit(p.line)
	pc.landed(p)
	p.releaseSlot()
	if !p.landed.Load() {
		pc.cancel(p.line, p.leave()) // there is something to cancel only after a panic of Await or the sender
	}
}

// quit ends one use of a line.
func (pc *Pacer[R]) quit(l *line) {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	keep := false
	if l.ends, keep = l.memory(time.Now()); !keep {
		delete(pc.lines, l.key)
		return
	}
	heap.Push(&pc.idle, l)
	if len(pc.lines) > pc.opts.MaxKeys { // all lines were in use, so too many were kept
		pc.forgetLocked()
	}
}

// Stats returns the counters. Each is exact, but they are not read at the same instant.
func (pc *Pacer[R]) Stats() Stats { return pc.stats.read() }

// Len counts the tracked keys.
func (pc *Pacer[R]) Len() int {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	return len(pc.lines)
}

// forgetLocked drops a line without users: the one whose server's answers end first. The caller holds pc.mu.
func (pc *Pacer[R]) forgetLocked() {
	if len(pc.idle) > 0 {
		delete(pc.lines, heap.Pop(&pc.idle).(*line).key)
	}
}

// idleLines is a heap of lines, ordered by when their servers' answers cease to matter.
type idleLines []*line

func (h idleLines) Len() int           { return len(h) }
func (h idleLines) Less(i, j int) bool { return h[i].ends.Before(h[j].ends) }
func (h idleLines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements [container/heap.Interface].
func (h *idleLines) Push(x any) {
	l := x.(*line)
	l.at = len(*h)
	*h = append(*h, l)
}

// Pop implements [container/heap.Interface].
func (h *idleLines) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	return l
}
