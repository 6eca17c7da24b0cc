// Package turns implements the line of one process's callers that wait for a budget in a remote store, such as Redis.
//
// The callers of one line have booked the same cost of the same key, each in one round trip. Their bookings are therefore
// interchangeable: the k-th turn has the k-th booking. When a caller leaves, all callers behind it move up, and the last booking
// becomes vacant. A new caller takes a vacant booking without a round trip. Surplus vacant bookings are given back, and all of them
// once the line is empty. Other processes do not take part: their callers keep their bookings.
//
// Only the first caller of a line has a timer. When it serves turns or leaves, it wakes the next one.
package turns

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Key identifies a line: its callers book the same cost of one key's budget.
type Key struct {
	Budget string
	Cost   int
}

// Lines holds a line for each key, which identifies a budget and a cost. The zero Lines is ready to use.
type Lines[K comparable] struct {
	mu    sync.Mutex
	lines map[K]*line
}

// booking is the reservation of one turn.
type booking struct {
	due time.Time
	res *ratelimit.Reservation
}

type line struct {
	turns    []*caller
	bookings []booking // ordered by due; at least as many as turns
}

// caller is a waiting caller.
type caller struct {
	wake   chan struct{} // has room for one element
	served bool
}

// maxVacant returns the number of bookings that stay vacant for new callers while the given number of callers wait. It is a small
// fraction, since other processes queue behind these bookings. In a short line, each caller that leaves gives a booking back at once.
func maxVacant(waiting int) int {
	if waiting < 2 {
		return 0
	}
	return 1 + waiting/4
}

// Wait books for a caller, unless a vacant booking is due within the time left, and sleeps until its turn. It returns the
// decision and nil, the error of book, or, if the context ends before the turn, the context's error joined with the errors of
// bookings that could not be given back.
func (ls *Lines[K]) Wait(ctx context.Context, key K, left time.Duration, book func() (*ratelimit.Reservation, error)) (ratelimit.Decision, error) {
	t, b := ls.vacant(key, left)
	if t == nil {
		res, err := book()
		if err != nil {
			return res.Decision, err
		}
		b = booking{time.Now().Add(res.Delay), res}
		if left, err := wait.Left(ctx); res.Delay <= 0 || err != nil || res.Delay > left {
			return res.Decision, res.Wait(ctx) // at once
		}
		t = ls.join(key, b)
	}
	d := b.res.Decision
	d.Delay = max(0, time.Until(b.due))
	unused, err := t.wait(ctx)
	if errs := giveBack(unused); len(errs) > 0 {
		err = errors.Join(append([]error{err}, errs...)...)
	}
	return d, err
}

// vacant returns a turn with the earliest vacant booking, and the booking, if it is due within the time left.
func (ls *Lines[K]) vacant(key K, left time.Duration) (t *turn[K], b booking) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.lines[key]
	if l == nil {
		return nil, b
	}
	now := time.Now()
	if ls.serveLocked(key, l, now); len(l.bookings) == len(l.turns) || l.bookings[len(l.turns)].due.Sub(now) > left {
		return nil, b
	}
	t = &turn[K]{lines: ls, key: key, line: l, turn: newCaller()}
	b = l.bookings[len(l.turns)]
	l.turns = append(l.turns, t.turn)
	return t, b
}

// join returns a turn for a new booking.
func (ls *Lines[K]) join(key K, b booking) *turn[K] {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.lines[key]
	if l == nil {
		if l = new(line); ls.lines == nil {
			ls.lines = map[K]*line{}
		}
		ls.lines[key] = l
	}
	i := sort.Search(len(l.bookings), func(i int) bool { return l.bookings[i].due.After(b.due) })
	t := &turn[K]{lines: ls, key: key, line: l, turn: newCaller()}
	l.bookings = slices.Insert(l.bookings, i, b)
	l.turns = slices.Insert(l.turns, min(i, len(l.turns)), t.turn)
	return t
}

func newCaller() *caller { return &caller{wake: make(chan struct{}, 1)} }

// turn is a caller's place in a line.
type turn[K comparable] struct {
	lines *Lines[K]
	key   K
	line  *line
	turn  *caller
}

// wait sleeps until the turn is served. If the context ends first, it returns the context's error and the bookings that the
// caller must give back.
func (t *turn[K]) wait(ctx context.Context) (unused []booking, err error) {
	for {
		served, timer := t.look()
		if served {
			return nil, nil
		}
		var due <-chan time.Time
		if timer != nil {
			due = timer.C
		}
		select {
		case <-t.turn.wake:
		case <-due:
		case <-ctx.Done():
			served, unused := t.leave()
			if served {
				return nil, nil
			}
			return unused, ctx.Err()
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// look serves all turns that are due. It reports whether this turn is served, or returns a timer if it is the first.
func (t *turn[K]) look() (served bool, timer *time.Timer) {
	ls, l := t.lines, t.line
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	if ls.serveLocked(t.key, l, now); t.turn.served {
		return true, nil
	}
	if l.turns[0] == t.turn {
		timer = time.NewTimer(l.bookings[0].due.Sub(now))
	}
	return false, timer
}

// leave removes a turn, unless it is served. It returns the vacant bookings that are not kept.
func (t *turn[K]) leave() (served bool, unused []booking) {
	ls, l := t.lines, t.line
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.serveLocked(t.key, l, time.Now()); t.turn.served {
		return true, nil
	}
	i := slices.Index(l.turns, t.turn)
	if l.turns = slices.Delete(l.turns, i, i+1); i == 0 && len(l.turns) > 0 {
		l.turns[0].rouse()
	}
	return false, ls.trimLocked(t.key, l)
}

// serveLocked serves all turns that are due.
func (ls *Lines[K]) serveLocked(key K, l *line, now time.Time) {
	served := false
	for len(l.turns) > 0 && !l.bookings[0].due.After(now) {
		served = true
		l.turns[0].served = true
		l.turns[0].rouse()
		l.turns[0], l.turns = nil, l.turns[1:]
		l.bookings[0], l.bookings = booking{}, l.bookings[1:]
	}
	switch {
	case !served:
	case len(l.turns) > 0:
		l.turns[0].rouse() // to set its timer
	default:
		if unused := ls.trimLocked(key, l); len(unused) > 0 {
			go giveBack(unused) // a served caller does not wait for the store
		}
	}
}

// trimLocked removes the surplus vacant bookings, beginning with the last.
func (ls *Lines[K]) trimLocked(key K, l *line) (unused []booking) {
	if n := len(l.turns) + maxVacant(len(l.turns)); n < len(l.bookings) {
		unused = slices.Clone(l.bookings[n:])
		l.bookings = slices.Delete(l.bookings, n, len(l.bookings))
	}
	if len(l.bookings) == 0 && ls.lines[key] == l {
		delete(ls.lines, key)
	}
	return unused
}

// Reset discards the vacant bookings of the keys that match: their bookings no longer exist.
func (ls *Lines[K]) Reset(matches func(K) bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for key, l := range ls.lines {
		if matches(key) {
			clear(l.bookings[len(l.turns):])
			l.bookings = l.bookings[:len(l.turns)]
		}
	}
}

// giveBack gives bookings back, the last one first, and returns the errors.
func giveBack(bookings []booking) (errs []error) {
	for i := len(bookings) - 1; i >= 0; i-- {
		if err := bookings[i].res.Cancel(); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func (c *caller) rouse() {
	select {
	case c.wake <- struct{}{}:
	default: // it is awake, or is being woken
	}
}
