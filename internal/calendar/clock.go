package calendar

import "sort"

// clockWindows are a zone's hours or minutes. A window begins at each instant when the zone's clock shows a full hour or
// minute. If clocks are set by whole hours, all windows have the same length: the hour repeated in autumn is two
// windows, and the hour skipped in spring is none. If clocks are set by half an hour, as on Lord Howe Island, the window
// of the step lasts until the clock shows a full hour again. After 2099, steps of a fraction of a window do not count.
type clockWindows struct {
	length  int64 // a window's length, in seconds
	spans   []clockSpan
	longest int64 // the length of the longest window since 1970
}

// clockSpan is a period whose windows all begin at the same offset from UTC's full hours or minutes.
type clockSpan struct {
	from   int64 // its first instant; the first span has no beginning
	phase  int64 // the clock's offset from UTC, less whole windows
	add    int64 // the window's index at t is (t+phase)/length+add, rounded down
	before int64 // the window's index before from
}

func newClockWindows(z *zone, length int64) *clockWindows {
	c := &clockWindows{length: length, longest: length}
	offset, step := z.offset(firstInstant)
	c.spans = []clockSpan{{from: firstInstant, phase: offset - length*floor(offset, length), before: floor(firstInstant, length) - 2}}
	for step < lastSurveyed {
		offset, next := z.offset(step)
		if phase := offset - length*floor(offset, length); phase != c.spans[len(c.spans)-1].phase {
			c.change(step, phase)
		}
		step = next
	}
	return c
}

// change begins a span.
func (c *clockWindows) change(from, phase int64) {
	s := clockSpan{from: from, phase: phase, before: c.index(from - 1)}
	at := s.before
	if (from+phase)%c.length == 0 {
		at++
	}
	s.add = at - floor(from+phase, c.length)
	c.spans = append(c.spans, s)
	if from >= 0 {
		c.longest = max(c.longest, c.start(s.before+1)-c.start(s.before))
	}
}

// index returns the number of an instant's window.
func (c *clockWindows) index(unix int64) int64 {
	s := c.spans[max(0, sort.Search(len(c.spans), func(i int) bool { return c.spans[i].from > unix })-1)]
	return floor(unix+s.phase, c.length) + s.add
}

// start returns a window's first instant.
func (c *clockWindows) start(i int64) int64 {
	s := c.spans[max(0, sort.Search(len(c.spans), func(j int) bool { return c.spans[j].before >= i })-1)]
	return (i-s.add)*c.length - s.phase
}
