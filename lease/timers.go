package lease

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// timers calls expire for holdings at instants in real time. All holdings share one
// timer. Its lock is acquired after a holding's lock, and released before expire runs.
type timers[K comparable] struct {
	origin time.Time
	expire func(h *holding[K])

	mu    sync.Mutex // guards the fields below
	dates dates[K]
	timer *time.Timer // runs until the first date; nil before the first add
}

// date is when something in a holding becomes due.
type date[K comparable] struct {
	at time.Duration // the time since the origin
	h  *holding[K]
}

func (c *timers[K]) now() time.Duration { return time.Since(c.origin) }

// later returns the instant d after at, both since the origin, or the last possible instant.
func later(at, d time.Duration) time.Duration {
	if d > math.MaxInt64-at {
		return math.MaxInt64
	}
	return at + d
}

// add schedules a date for a holding.
func (c *timers[K]) add(at time.Duration, h *holding[K]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	heap.Push(&c.dates, date[K]{at, h})
	if c.dates[0].h == h && c.dates[0].at == at {
		c.armLocked()
	}
}

// armLocked sets the timer to the first date.
func (c *timers[K]) armLocked() {
	if c.timer != nil {
		c.timer.Stop()
	}
	switch {
	case len(c.dates) == 0:
		c.dates = nil
	case c.timer == nil:
		c.timer = time.AfterFunc(c.dates[0].at-c.now(), c.fire)
	default:
		c.timer.Reset(c.dates[0].at - c.now())
	}
}

// fire calls expire for each holding whose date has come.
func (c *timers[K]) fire() {
	for _, h := range c.due() {
		c.expire(h)
	}
}

func (c *timers[K]) due() (due []*holding[K]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for now := c.now(); len(c.dates) > 0 && c.dates[0].at <= now; {
		due = append(due, heap.Pop(&c.dates).(date[K]).h)
	}
	c.armLocked()
	return due
}

// prune removes the dates of empty holdings. If no date is left, the timer stops.
func (c *timers[K]) prune() {
	c.mu.Lock()
	all := c.dates
	c.dates = nil
	c.armLocked()
	c.mu.Unlock()
	for _, d := range all {
		d.h.mu.Lock()
		if len(d.h.batches)+len(d.h.waiting) > 0 {
			c.add(d.at, d.h)
		}
		d.h.mu.Unlock()
	}
}

// dates is a heap with the first date on top.
type dates[K comparable] []date[K]

func (d dates[K]) Len() int           { return len(d) }
func (d dates[K]) Less(i, j int) bool { return d[i].at < d[j].at }
func (d dates[K]) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dates[K]) Push(x any)        { *d = append(*d, x.(date[K])) }
func (d *dates[K]) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	(*d)[last] = date[K]{}
	*d = (*d)[:last]
	return x
}
