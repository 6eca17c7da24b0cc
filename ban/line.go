package ban

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/wait"
)

// peekEach is how often a waiting key's ban is looked up, because another process may begin or end one.
const peekEach = time.Second

// line holds the waiting calls by their keys. The beginning of a ban ends the
// waits in the limiter's line. The early end of a ban ends the waits for its end.
type line[K any] struct {
	calls atomic.Int64 // waiting calls
	mu    sync.Mutex
	keys  map[any]*waiting
}

// waiting is one key's waiting calls. The lock of its line guards it.
type waiting struct {
	calls map[*call]struct{}
	timer *time.Timer
}

// call is a waiting call: in the limiter's line, or for a ban's end.
type call struct {
	barred bool // whether the call waits for a ban's end
	cancel context.CancelCauseFunc
}

// began is the cause in calls' contexts when a ban ends their waits in the limiter's line.
type began struct{ ban ratelimit.Decision }

func (*began) Error() string { return "the key is banned" }

// errEnded is the cause in calls' contexts when a ban's end ends their waits for it.
var errEnded = errors.New("the ban has ended")

// enter adds a waiting call. If barred is false, the returned context ends when a ban of
// the key begins. If barred is true, it ends when the ban ends. The caller must call leave.
func (b *Limiter[K]) enter(ctx context.Context, key K, barred bool) (_ context.Context, leave func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &call{barred: barred, cancel: cancel}
	var id any = key
	if !canCompare(key) || id != any(key) { // a map does not find a key that does not equal itself
		id = c
	}
	l := &b.line
	l.calls.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.keys[id]
	if w == nil {
		if l.keys == nil {
			l.keys = map[any]*waiting{}
		}
		w = &waiting{calls: map[*call]struct{}{}}
		w.timer = time.AfterFunc(peekEach, func() { b.look(key, id, w) })
		l.keys[id] = w
	}
	w.calls[c] = struct{}{}
	return ctx, func() {
		cancel(nil)
		l.calls.Add(-1)
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(w.calls, c); len(w.calls) == 0 {
			w.timer.Stop()
			delete(l.keys, id)
		}
	}
}

// look looks up whether the key is banned, ends waits accordingly, and runs again after peekEach.
func (b *Limiter[K]) look(key K, id any, w *waiting) {
	d, ok, err := b.peek(key)
	b.line.mu.Lock()
	defer b.line.mu.Unlock()
	switch {
	case b.line.keys[id] != w:
		return
	case ok:
		w.end(true, errEnded)
	case err == nil:
		w.end(false, &began{d})
	}
	w.timer.Reset(peekEach)
}

// peek calls banned. No caller could recover from a panic in its goroutine, so peek counts a panic as a failure.
func (b *Limiter[K]) peek(key K) (d ratelimit.Decision, ok bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("ban: bans panicked: %v", p)
			b.fail(err)
		}
	}()
	return b.banned(context.Background(), key, 1)
}

// began ends a key's waits in the limiter's line.
func (l *line[K]) began(key K, ban ratelimit.Decision) { l.end(key, false, &began{ban}) }

// ended ends the waits for the end of a key's ban.
func (l *line[K]) ended(key K) { l.end(key, true, errEnded) }

func (l *line[K]) end(key K, barred bool, cause error) {
	if l.calls.Load() == 0 || !canCompare(key) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.keys[key]; w != nil {
		w.end(barred, cause)
	}
}

// end ends one kind's waits. The line is locked.
func (w *waiting) end(barred bool, cause error) {
	for c := range w.calls {
		if c.barred == barred {
			c.cancel(cause)
		}
	}
}

// Wait waits until the cost can be spent, and first for a ban's end: see [ratelimit.Wait]. If a ban begins
// while the call is in limiter's line, Wait returns a [ratelimit.LateError] at once, with the time until the
// ban's end. It notices within a second if other processes begin or end bans. A failed Wait is not a strike.
func (b *Limiter[K]) Wait(ctx context.Context, key K, cost int) error {
	b.requireInit()
	ctx = wait.OrBackground(ctx)
	for {
		err := b.inLine(ctx, key, cost)
		var ban *began
		if !errors.As(err, &ban) {
			return err
		}
		left, err := wait.Left(ctx)
		d := ban.ban
		switch {
		case err != nil:
			return err
		case d.RetryAfter > left:
			return tooLate(d, left)
		case d.RetryAfter <= 0:
			return fmt.Errorf("%w: the key is banned without an end, under %v", ratelimit.ErrLimited, d.Limit)
		}
		until, leave := b.enter(ctx, key, true)
		err = wait.Sleep(until, d.RetryAfter)
		leave()
		if err != nil && ctx.Err() != nil {
			return err
		}
	}
}

// inLine waits in the limiter's line. It returns a *began if the key is banned.
func (b *Limiter[K]) inLine(ctx context.Context, key K, cost int) error {
	left, err := wait.Left(ctx)
	if err != nil {
		return err
	}
	inLine, leave := b.enter(ctx, key, false) // before banned is called, so the call misses no ban
	defer leave()
	d, ok, err := b.banned(ctx, key, cost)
	switch {
	case err != nil:
		return err
	case !ok:
		return &began{d}
	}
	begin := time.Now()
	err = ratelimit.Wait(inLine, b.limiter, key, cost)
	var ban *began
	if err == nil || ctx.Err() != nil || !errors.As(context.Cause(inLine), &ban) {
		return err
	}
	late := tooLate(ban.ban, left-time.Since(begin))
	switch {
	case !errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, ratelimit.ErrUnavailable): // the call may stay charged
		return errors.Join(late, err)
	}
	return late
}

// tooLate returns the error of a call whose deadline, after left,
// is before a ban's end, or whose wait in line a ban has ended.
func tooLate(ban ratelimit.Decision, left time.Duration) error {
	late := &ratelimit.LateError{Package: "ban", Limit: ban.Limit, After: ban.RetryAfter, Reason: ratelimit.ErrLimited}
	if ban.RetryAfter > left {
		late.Reason = context.DeadlineExceeded
	}
	return late
}
