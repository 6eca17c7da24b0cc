package failover

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// State says whether the primary is asked.
type State uint8

const (
	// StateClosed means that the primary is asked for each decision.
	StateClosed State = iota
	// StateHalfOpen means that one decision at a time is a probe of the primary.
	StateHalfOpen
	// StateOpen means that the primary is not asked.
	StateOpen
)

// String returns "closed", "half-open" or "open".
func (s State) String() string {
	switch s {
	case StateClosed:
		return "closed"
	case StateHalfOpen:
		return "half-open"
	}
	return "open"
}

func stateOf(s gobreaker.State) State {
	switch s {
	case gobreaker.StateClosed:
		return StateClosed
	case gobreaker.StateHalfOpen:
		return StateHalfOpen
	}
	return StateOpen
}

// change is a change of state.
type change struct{ from, to State }

// breaker decides whether the primary is asked. It is the only part that knows
// gobreaker, which calls OnStateChange under its own lock: the changes are queued there,
// and told in order once no lock is held.
type breaker struct {
	gate   *gobreaker.TwoStepCircuitBreaker[struct{}]
	tell   func(change)
	opened atomic.Uint64

	queued  atomic.Int64 // changes that are not told yet
	mu      sync.Mutex   // guards the fields below; taken after gobreaker's lock
	changes []change
	telling bool // a goroutine is telling changes
}

// newBreaker returns a breaker that opens after this many failures in a row, for about openFor: each
// breaker draws a time within ±20 % of it, so that a fleet does not probe at once.
func newBreaker(failures int, openFor time.Duration, tell func(change)) *breaker {
	b := &breaker{tell: tell}
	b.gate = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:   1,
		Timeout:       max(1, time.Duration(float64(openFor)*(0.8+0.4*rand.Float64()))),
		ReadyToTrip:   func(c gobreaker.Counts) bool { return uint64(c.ConsecutiveFailures) >= uint64(failures) },
		OnStateChange: func(_ string, from, to gobreaker.State) { b.queue(change{stateOf(from), stateOf(to)}) },
		IsSuccessful:  func(err error) bool { return err == nil },
		IsExcluded:    func(err error) bool { return errors.Is(err, errNothing) },
	})
	return b
}

// What a call of the primary tells of its health; nil if it is in good health.
var (
	errFailure = errors.New("failover: a failure")
	errNothing = errors.New("failover: an answer that tells nothing")
)

// enter reports whether the primary may be asked. If so, the caller must call done.
func (b *breaker) enter() (done func(health error), ok bool) {
	done, err := b.gate.Allow()
	b.announce()
	return done, err == nil
}

func (b *breaker) state() State {
	s := stateOf(b.gate.State())
	b.announce()
	return s
}

func (b *breaker) queue(c change) {
	if c.to == StateOpen {
		b.opened.Add(1)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes = append(b.changes, c)
	b.queued.Add(1)
}

// announce tells the changes that are queued. One goroutine at a time does, so that they
// are told in order.
func (b *breaker) announce() {
	for b.queued.Load() > 0 {
		c, ok := b.next()
		if !ok {
			return
		}
		b.tellOne(c)
	}
}

// next takes a change, unless another goroutine is telling one.
func (b *breaker) next() (c change, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.telling || len(b.changes) == 0 {
		return c, false
	}
	c = b.changes[0]
	b.changes = b.changes[1:]
	b.queued.Add(-1)
	b.telling = true
	return c, true
}

func (b *breaker) tellOne(c change) {
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.telling = false
	}()
	b.tell(c)
}
