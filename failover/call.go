package failover

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// answer is what an engine has returned.
type answer struct {
	decision ratelimit.Decision
	each     []ratelimit.Decision   // the layers' decisions, if the call was PeekEach
	res      *ratelimit.Reservation // the reservation, if the call was Reserve
	err      error
	panicked bool
	standIn  bool            // whether the stand-in has decided
	owe      func(units int) // called with the real cost when the stand-in's reservation is settled; nil if no debt is recorded
}

// ending states how a call to the primary ended for its caller.
type ending uint8

const (
	answered    ending = iota // a decision
	refused                   // an error about this call, which shows nothing about the primary
	unavailable               // ErrUnavailable
	overdue                   // no answer within Options.Timeout
	panicked
	busy     // its turn came too late or not at all
	shut     // not called, because the breaker is not closed
	deadline // the caller's own deadline came first
	gone     // the caller's context was cancelled first
)

// String names the ending in logs.
func (o ending) String() string {
	return [...]string{"answered", "refused", "unavailable", "timeout", "panic", "busy", "open", "deadline", "cancelled"}[o]
}

// instead reports whether the stand-in has to decide.
func (o ending) instead() bool { return o >= unavailable && o != gone }

// health returns what a call with this ending shows about the primary.
func (o ending) health() health {
	switch o {
	case answered:
		return success
	case unavailable, overdue, panicked:
		return failure
	}
	return noEvidence
}

// caller calls the primary on separate goroutines, so its callers can leave in time.
//
// A caller waits for its turn and for the answer for at most timeout in all, and no longer than its own context. A call
// has the whole timeout from its start. It continues after its caller has left, and is judged when it ends or its time
// is over. It holds its turn until it ends. So overdue calls may hold all turns. They lose their turns when the breaker
// closes, because then the primary works again. They also lose them after patience, because they may never end.
type caller struct {
	timeout  time.Duration
	patience time.Duration
	calls    int
	turns    atomic.Pointer[turns]
	waiting  atomic.Int64 // callers waiting for their turn
	most     int64        // the maximum of waiting; 0 for no maximum
}

// turns are the turns of the calls under way.
type turns struct {
	taken chan struct{} // has an element for each turn in use

	mu      sync.Mutex // guards the fields below
	overdue int        // calls whose time is over
	since   time.Time  // when overdue last changed
}

// count adds delta to the number of overdue calls.
func (t *turns) count(delta int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.overdue += delta
	t.since = time.Now()
}

// held reports whether overdue calls have held all turns for at least d.
func (t *turns) held(d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.overdue == cap(t.taken) && time.Since(t.since) >= d
}

func newCaller(timeout, patience time.Duration, calls int, most int64) *caller {
	c := &caller{timeout: timeout, patience: patience, calls: calls, most: most}
	c.turns.Store(c.newTurns())
	return c
}

func (c *caller) newTurns() *turns { return &turns{taken: make(chan struct{}, c.calls)} }

// renew gives later callers new turns, if overdue calls have held all turns for at least d.
func (c *caller) renew(d time.Duration) {
	if t := c.turns.Load(); t.held(d) {
		c.turns.CompareAndSwap(t, c.newTurns())
	}
}

// job is one call.
type job struct {
	f    func(ctx context.Context) answer
	late func(answer) // handles an answer without a waiting caller; may be nil

	// begin reports whether the call may be made. A caller that needs a turn waits for
	// one and calls begin again. It stops waiting once shut is closed; shut may be nil.
	begin func(turn bool) (a admission, shut <-chan struct{})
	judge func(ending, error) // called once with the ending, if the call was made

	announce func() // reports the changes due to the judgement
}

// call makes a call. It returns the answer, or returns without one when the caller has to leave.
func (c *caller) call(ctx context.Context, j job) (answer, ending) {
	if outcome.EndOf(ctx) != nil {
		return leaves(ctx)
	}
	verdict, shutting := j.begin(false)
	switch verdict {
	case notAdmitted:
		return answer{}, shut
	case admitted:
		return c.start(ctx, j, nil, nil)
	}
	t := c.turns.Load()
	select {
	case t.taken <- struct{}{}:
		return c.startInTurn(ctx, j, nil, t)
	default:
	}
	c.renew(c.patience)
	if n := c.waiting.Add(1); c.most > 0 && n > c.most {
		c.waiting.Add(-1)
		return answer{}, busy
	}
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	t, a, o := c.await(ctx, timer.C, shutting)
	c.waiting.Add(-1)
	if t == nil {
		return a, o
	}
	return c.startInTurn(ctx, j, timer.C, t)
}

// await waits for a turn, and returns the turn's set. If the caller has
// to leave first, await returns nil and the caller's answer and ending.
func (c *caller) await(ctx context.Context, over <-chan time.Time, shutting <-chan struct{}) (*turns, answer, ending) {
	for {
		t := c.turns.Load()
		select {
		case t.taken <- struct{}{}:
			if t == c.turns.Load() {
				return t, answer{}, answered
			}
			<-t.taken // the set was replaced meanwhile, so try the new one
		case <-over:
			return nil, answer{}, busy
		case <-shutting:
			return nil, answer{}, shut
		case <-ctx.Done():
			a, o := leaves(ctx)
			return nil, a, o
		}
	}
}

// leaves returns the answer and ending of a caller whose context has ended.
func leaves(ctx context.Context) (answer, ending) {
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return answer{err: err}, gone
	}
	return answer{err: context.DeadlineExceeded}, deadline
}

// startInTurn makes a call after it has got its turn, if the call is still permitted.
func (c *caller) startInTurn(ctx context.Context, j job, over <-chan time.Time, t *turns) (answer, ending) {
	if a, _ := j.begin(true); a != admitted {
		<-t.taken
		return answer{}, shut
	}
	return c.start(ctx, j, over, t)
}

// start makes a call. The call ends its turn in t, unless t is nil. The caller leaves when over fires, unless over is nil.
func (c *caller) start(ctx context.Context, j job, over <-chan time.Time, t *turns) (answer, ending) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	r := &run{job: j, turns: t, answers: make(chan judged, 1)}
	go func() {
		defer cancel()
		a := guarded(bounded, j.f)
		r.deliver(a, judge(bounded, a))
	}()
	a, o := answer{err: errOverdue(c.timeout)}, overdue
	select {
	case v := <-r.answers:
		return v.answer, v.ending
	case <-bounded.Done():
	case <-over:
		if outcome.EndOf(bounded) == nil {
			a, o = answer{err: errOverdue(c.timeout)}, busy
		}
	case <-ctx.Done():
		a, o = leaves(ctx)
	}
	return r.leave(bounded, c.timeout, a, o)
}

// judged is an answer and its ending.
type judged struct {
	answer
	ending
}

// run is one call on its own goroutine.
type run struct {
	job
	turns   *turns // the set of the call's turn, or nil
	answers chan judged

	mu    sync.Mutex // guards phase; also held while the call is judged
	phase phase
}

// phase is a call's progress. A call is judged once: when it ends, or when it begins to hang.
type phase uint8

const (
	awaited  phase = iota // running, and the caller waits
	deserted              // running, and the caller has left
	hanging               // running after its time is over
	ended
)

// deliver passes on the call's answer, and ends the call's turn.
func (r *run) deliver(a answer, o ending) {
	r.mu.Lock()
	before := r.phase
	r.phase = ended
	if before != hanging {
		r.judge(o, a.err)
	}
	if before == awaited {
		r.endTurn(before)
		r.answers <- judged{a, o}
	}
	r.mu.Unlock()
	switch before {
	case awaited:
		return // the caller reports the changes
	case deserted:
		r.announce()
	}
	defer r.endTurn(before)
	if r.late != nil {
		defer func() { _ = recover() }() // nobody waits for this panic: the caller was answered long ago
		r.late(a)
	}
}

// endTurn ends the call's turn, if it has one. before is the call's phase at its end.
func (r *run) endTurn(before phase) {
	if r.turns == nil {
		return
	}
	if before == hanging {
		r.turns.count(-1)
	}
	<-r.turns.taken
}

// leave makes the caller leave with the given answer and ending, unless the call's
// answer is there. The call continues, and hangs when its own time is over.
func (r *run) leave(bounded context.Context, timeout time.Duration, a answer, o ending) (answer, ending) {
	r.mu.Lock()
	select {
	case v := <-r.answers: // the answer came at the last instant, so it is in time
		r.mu.Unlock()
		return v.answer, v.ending
	default:
	}
	r.phase = deserted
	r.mu.Unlock()
	if o == overdue {
		r.hang(a.err)
		return a, o
	}
	context.AfterFunc(bounded, func() {
		if errors.Is(bounded.Err(), context.DeadlineExceeded) {
			r.hang(errOverdue(timeout))
		}
	})
	return a, o
}

// hang judges a call whose time is over, if it has not ended.
func (r *run) hang(err error) {
	r.mu.Lock()
	if r.phase == ended {
		r.mu.Unlock()
		return
	}
	r.phase = hanging
	if r.turns != nil {
		r.turns.count(1)
	}
	r.judge(overdue, err)
	r.mu.Unlock()
	r.announce()
}

func errOverdue(timeout time.Duration) error {
	return fmt.Errorf("failover: no answer from the primary within %v: %w", timeout, ratelimit.ErrUnavailable)
}

// guarded calls f, and turns a panic into an error. A panic's text may
// contain a key, so the error has only the text of runtime errors.
func guarded(ctx context.Context, f func(ctx context.Context) answer) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a = answer{err: panicError(p), panicked: true}
		}
	}()
	return f(ctx)
}

func panicError(p any) error {
	return fmt.Errorf("failover: the primary panicked with %s, at %s", failures.PanicText(p), panicSite())
}

// panicSite returns a panic's place in the code: the first frame below the runtime's.
func panicSite() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	below := false
	for {
		f, more := frames.Next()
		if below && len(f.Function) > 8 && f.Function[:8] != "runtime." {
			return fmt.Sprintf("%s (line %d)", f.Function, f.Line)
		}
		below = below || f.Function == "runtime.gopanic"
		if !more {
			return "an unknown place"
		}
	}
}

// judge returns the ending of a call under this package's own context.
func judge(bounded context.Context, a answer) ending {
	switch cause := outcome.CauseOf(a.err); {
	case a.panicked:
		return panicked
	case cause == outcome.CauseNone:
		return answered
	case cause == outcome.CauseUnavailable:
		return unavailable
	case cause == outcome.CauseEnded, outcome.EndOf(bounded) != nil:
		return overdue
	}
	return refused
}

// judgeBy returns the ending of a call under the caller's own context. After the
// context has ended, an error counts as the caller's, even if the primary fails, too.
func judgeBy(ctx context.Context, a answer) ending {
	if a.err != nil && !a.panicked && outcome.EndOf(ctx) != nil {
		_, o := leaves(ctx)
		return o
	}
	return judge(ctx, a)
}
