package wait

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Calls are waiting calls, for example one limiter's. When the limiter changes, [Calls.Check] restarts the calls
// affected by the change, in the order of their arrival. The zero Calls is empty. It is safe for concurrent use.
type Calls struct {
	mu      sync.Mutex
	all     map[*Call]struct{}
	arrived uint64
}

// Call is a [Renewable] among others. Make it ready with [Call.Init].
type Call struct {
	Renewable
	among  *Calls
	check  func() (anew bool)
	waited atomic.Bool
	number uint64        // of its arrival among them; 0 until it waits
	stands chan struct{} // has an element when an attempt has begun to wait since, or the call is over
}

// Init makes the call one of those calls once it waits. check calls [Call.Anew] and reports true
// if the attempt under way has to end. It is called with each change, and when an attempt begins to wait:
// a change may have come before that. It may be called by several goroutines.
func (c *Call) Init(among *Calls, check func() (anew bool)) {
	c.among, c.check, c.stands = among, check, make(chan struct{}, 1)
	c.Waits = c.begins
}

func (c *Call) begins() {
	c.waited.Store(true)
	c.among.add(c)
	c.stood()
	c.check()
}

func (c *Call) stood() {
	select {
	case c.stands <- struct{}{}:
	default:
	}
}

// Anew ends the attempt under way.
func (c *Call) Anew() {
	select {
	case <-c.stands:
	default:
	}
	c.Renew()
}

// Over takes a call that has ended from the calls. It reports whether the call has waited. If not, [Renewable.Clear]
// makes it ready for another one.
func (c *Call) Over() (waited bool) {
	if !c.waited.Load() {
		return false
	}
	c.among.mu.Lock()
	delete(c.among.all, c)
	c.among.mu.Unlock()
	if c.Place != nil {
		c.Place.Abandon()
	}
	c.stood()
	return true
}

func (cs *Calls) add(c *Call) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.all == nil {
		cs.all = map[*Call]struct{}{}
	}
	if cs.all[c] = struct{}{}; c.number == 0 {
		cs.arrived++
		c.number = cs.arrived
	}
}

// Len returns the number of calls.
func (cs *Calls) Len() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.all)
}

// inOrder is how long one check has each call find its new place before the next one looks for its own.
const inOrder = time.Second / 4

// Check checks all calls, in the order of their arrival.
func (cs *Calls) Check() {
	cs.mu.Lock()
	all := slices.Collect(maps.Keys(cs.all))
	cs.mu.Unlock()
	slices.SortFunc(all, func(a, b *Call) int { return cmp.Compare(a.number, b.number) })
	var late <-chan time.Time
	isLate := false
	for _, c := range all {
		if anew := c.check(); !anew || isLate {
			continue
		}
		if late == nil {
			late = time.After(inOrder)
		}
		select {
		case <-c.stands:
		case <-late:
			isLate = true
		}
	}
}
