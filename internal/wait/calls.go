package wait

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Calls are waiting calls, for example one limiter's. When the limiter changes, [Calls.Check] restarts the
// affected calls, in the order of their arrival. The zero Calls is empty. It is safe for concurrent use.
type Calls struct {
	mu      sync.Mutex
	all     map[*Call]struct{}
	arrived uint64
}

// Call is a [Renewable] in a [Calls]. Prepare it with [Call.Init].
type Call struct {
	Renewable
	among  *Calls
	check  func() (anew bool)
	waited atomic.Bool
	number uint64        // the call's number in the order of arrival; 0 until it waits
	stands chan struct{} // has an element if an attempt has begun to wait since the last Anew, or if the call is over
}

// Init prepares a call. The call joins among when it first waits. check is called after each
// change, and when an attempt begins to wait, because a change may have come before. If the present
// attempt must end, check calls [Call.Anew] and reports true. Several goroutines may call check.
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

// Anew ends the present attempt.
func (c *Call) Anew() {
	select {
	case <-c.stands:
	default:
	}
	c.Renew()
}

// Over removes an ended call from its Calls. It reports whether the call has
// waited. If it has not, [Renewable.Clear] prepares it for another call.
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

// inOrder bounds how long one Check lets restarted calls take their new
// places one after the other. The remaining calls then restart at once.
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
