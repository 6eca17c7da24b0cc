package redislimit

import (
	"sync/atomic"
	"time"
)

// turn is what has become of a ticket that waits: it is woken once, for one reason.
type turn struct{ atomic.Uint32 }

const (
	waits   uint32 = iota
	isWoken        // it is answered, or leads
	isLate         // its deadline has passed
)

// take reports whether the ticket still waited, and makes sure that nobody else wakes it.
func (t *turn) take(as uint32) bool { return t.CompareAndSwap(waits, as) }

// watch wakes tickets at their deadlines, all with one timer: a timer for each would take a
// tenth of a decision's time, and hardly ever fire. All tickets have the sender's timeout,
// so the one that came first is due first. The combiner's lock guards it.
type watch struct {
	tickets []*ticket // in the order in which they came; some wait no longer
	timer   *time.Timer
	armed   bool
	due     func() // what the timer calls
}

// trim forgets the tickets at the front that wait no longer.
func (w *watch) trim() {
	for len(w.tickets) > 0 && w.tickets[0].turn.Load() != waits {
		w.drop()
	}
}

// add watches a ticket.
func (w *watch) add(t *ticket) {
	w.trim()
	if w.tickets = append(w.tickets, t); !w.armed {
		w.arm(time.Until(t.deadline))
	}
}

func (w *watch) drop() {
	w.tickets[0] = nil
	w.tickets = w.tickets[1:]
}

func (w *watch) arm(d time.Duration) {
	w.armed = true
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.due)
	} else {
		w.timer.Reset(d)
	}
}

// wakeLate wakes the tickets whose deadlines have passed, and sets the timer for the next.
func (s *sender) wakeLate() {
	c := &s.combiner
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &c.watch
	for w.armed = false; len(w.tickets) > 0; w.drop() {
		t := w.tickets[0]
		if t.turn.Load() != waits {
			continue
		}
		if left := time.Until(t.deadline); left > 0 {
			w.arm(left)
			return
		}
		if t.turn.take(isLate) {
			t.tooLate = !s.leaveLocked(t)
			t.wake <- struct{}{}
		}
	}
}
