package ratelimit

import (
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/calendar"
	"github.com/weir-go/ratelimit/internal/meter"
)

// wallClock is a Clock for calendars, too. Wall is called as Now is: concurrently, and while locks are held. The
// year of a wall time is from 1 to 9999. Steps of less than a millisecond between Now and Wall are not noticed.
type wallClock interface {
	Clock
	Wall() time.Time
}

// calendars holds the calendars of a limiter's limits, on the limiter's clock.
type calendars struct {
	clock Clock
	each  sync.Map // *wallWindows by Period
}

// windows returns the windows of a valid period.
func (c *calendars) windows(p Period) (*wallWindows, error) {
	if w, ok := c.each.Load(p); ok {
		return w.(*wallWindows), nil
	}
	clock, ok := c.clock.(wallClock)
	if !ok {
		return nil, invalid("a calendar of %v needs a clock with a wall time, and Options.Clock is a %T without Wall", p, c.clock)
	}
	made, err := p.calendar()
	if err != nil {
		return nil, err
	}
	w, _ := c.each.LoadOrStore(p, &wallWindows{clock: clock, calendar: made})
	return w.(*wallWindows), nil
}

// wallWindows are a calendar's windows, as readings of a limiter's clock. A window's end is computed from the wall time,
// and stored as a reading, so a decision makes only a comparison. It is computed again at that reading. It is also
// computed again a minute after the last time, because the wall clock may have been set, or the machine may have slept.
//
// A window's ordinal is its beginning in Unix seconds, counted from an instant before all windows.
//
// Its lock comes after all others. Under it, only the clock is called.
type wallWindows struct {
	clock    wallClock
	calendar *calendar.Calendar
	present  atomic.Pointer[present]

	// floor is the ordinal of the last window in which a dropped key could have spent.
	// No new key begins in an earlier window. latest is the ordinal of the latest
	// window shown by the wall clock or reached by an evicted key. Both only rise.
	floor, latest atomic.Int64
	carrier       atomic.Pointer[any] // a dropped key, to save the floor with

	mu sync.Mutex // held while the wall clock is read
}

// present is one look's result at the wall clock. It is immutable.
type present struct {
	meter.Window              // the reading's window
	next         meter.Window // the next window
	looked       int64        // the reading of the last look at the wall clock
	at           int64        // a reading of the limiter's clock
	wall         time.Time    // the wall time at that reading
}

const (
	lookAgain   = int64(time.Minute)
	ordinalZero = 1 << 37 // ordinals count from this many seconds before 1970: 4355 years
)

// At returns an instant's window.
func (w *wallWindows) At(instant int64) meter.Window {
	p := w.present.Load()
	if p == nil || instant >= p.looked+lookAgain || !p.holds(instant) {
		if p = w.look(); !p.holds(instant) {
			return p.of(w.calendar.At(p.unix(instant)))
		}
	}
	return p.Window
}

// After returns the k-th window after the window with the given ordinal. It reads the clock itself,
// because a caller may need the time when a key is fresh long after the key's last decision.
func (w *wallWindows) After(ordinal, k int64) meter.Window {
	p := w.look()
	if ordinal == p.Ordinal && k == 1 {
		return p.next
	}
	return p.of(w.calendar.After(ordinal-ordinalZero, k))
}

// Count counts the windows from the first to the second.
func (w *wallWindows) Count(first, second int64) int64 {
	return w.calendar.Count(first-ordinalZero, second-ordinalZero)
}

// recalled returns the state in which a key is recalled. Spending before the window of the ordinal
// moves to the last window before it, but at most to the wall clock's latest. The ordinal may belong
// to another period. If dropped keys may have used a later window, the key begins without spending.
func (w *wallWindows) recalled(s meter.State, ordinal int64) meter.State {
	last := w.before(ordinal)
	if last < max(s.M, w.floor.Load()) {
		return meter.State{At: s.At}
	}
	s.M = max(s.M, min(last, w.latest.Load()))
	return s
}

// before returns the ordinal of the last window before another ordinal, perhaps another period's.
func (w *wallWindows) before(ordinal int64) int64 {
	return w.calendar.At(ordinal-1-ordinalZero).From + ordinalZero
}

// follows reports whether the window before ordinal has begun, and is not earlier than the window of other.
func (w *wallWindows) follows(ordinal, other int64) bool {
	before := w.before(ordinal)
	return other <= before && before <= w.latest.Load()
}

// instant returns the reading at which windows of this ordinal begin, by the last look at the wall clock.
func (c *calendars) instant(ordinal, now int64) int64 {
	at := int64(-maxReading)
	for _, w := range c.each.Range {
		w := w.(*wallWindows)
		w.At(now) // to notice a change of the wall clock
		if p := w.present.Load(); p != nil {
			at = max(at, min(p.reading(ordinal-ordinalZero), maxReading))
		}
	}
	return at
}

// all returns the calendars by period.
func (c *calendars) all() iter.Seq2[Period, *wallWindows] {
	return func(yield func(Period, *wallWindows) bool) {
		c.each.Range(func(p, w any) bool { return yield(p.(Period), w.(*wallWindows)) })
	}
}

// passed records that the spending of past windows may be forgotten. From then on no new key begins before the present
// windows.
func (c *calendars) passed(now int64) {
	for _, w := range c.each.Range {
		w.(*wallWindows).passed(now)
	}
}

// raise sets x to the ordinal if this is higher, and reports whether it did.
func raise(x *atomic.Int64, ordinal int64) bool {
	for old := x.Load(); ordinal > old; old = x.Load() {
		if x.CompareAndSwap(old, ordinal) {
			return true
		}
	}
	return false
}

// look returns the windows at the clock's present reading.
func (w *wallWindows) look() *present {
	now := reading(w.clock)
	if p := w.present.Load(); p != nil && p.current(now) {
		return p
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.present.Load()
	if p != nil && p.current(now) {
		return p
	}
	p = w.found(p)
	w.present.Store(p)
	return p
}

// found looks at the wall clock. If it agrees with the last look to a millisecond,
// found keeps the earlier result: the two clocks are not read at one instant.
func (w *wallWindows) found(before *present) *present {
	wall := w.clock.Wall().Round(0)
	now := reading(w.clock) // read after the wall clock, so a boundary is late rather than early
	p := &present{looked: now, at: now, wall: wall}
	if before != nil {
		if off := wall.Sub(before.wallAt(now)); -time.Millisecond < off && off < time.Millisecond {
			p.at, p.wall = before.at, before.wall
		}
	}
	unix := p.unix(now)
	p.Window = p.of(w.calendar.At(unix))
	p.next = p.of(w.calendar.After(unix, 1))
	raise(&w.latest, p.Ordinal)
	return p
}

// holds reports whether an instant lies in the window.
func (p *present) holds(instant int64) bool { return p.From <= instant && instant < p.To }

// current reports whether the wall clock need not be read again.
func (p *present) current(now int64) bool {
	return p.looked <= now && now < p.looked+lookAgain && p.holds(now)
}

// wallAt returns the wall time at a reading.
func (p *present) wallAt(instant int64) time.Time { return p.wall.Add(time.Duration(instant - p.at)) }

// unix returns the wall time at a reading, in seconds.
func (p *present) unix(instant int64) int64 { return p.wallAt(instant).Unix() }

// of returns a window as readings.
func (p *present) of(w calendar.Window) meter.Window {
	return meter.Window{From: p.reading(w.From), To: p.reading(w.To), Ordinal: w.From + ordinalZero}
}

// reading returns the reading at a wall time, limited to the range of readings.
func (p *present) reading(unix int64) int64 {
	d := int64(time.Unix(unix, 0).Sub(p.wall))
	if d < 0 && p.at < math.MinInt64-d {
		return math.MinInt64
	}
	return meter.Add(p.at, d)
}

// This part determines in which window a new key may begin. No key gets a window before the floor.
// A dropped key, or a fresh key of a saved limiter, may have spent in earlier windows. If the wall
// clock were set back, the key could spend the same budget again. A calendar's floor rises
//
//   - when a key is dropped (dropped), or evicted with nothing to remember of it (evicted),
//   - when remembered spending is overwritten because it is over (calendars.passed),
//   - when a fresh key that was saved is not restored (floorOf), or a saved floor is restored (restored).

// afterFirst returns the ordinal of the second window that a key may get at an instant.
func (w *wallWindows) afterFirst(instant int64) int64 {
	return w.After(max(w.At(instant).Ordinal, w.floor.Load()), 1).Ordinal
}

// dropped notes a key's drop at a reading. The key may have spent in the reading's window, or have been granted
// it, so no key is created again in an earlier window. If the key has raised the floor, it is kept as the carrier.
func dropped[K comparable](w *wallWindows, key K, s meter.State, floor int64) {
	ordinal := w.At(floor).Ordinal
	if s.N == 0 { // its spending in the window was given back
		ordinal = max(ordinal, s.M)
	}
	if raise(&w.floor, ordinal) || w.carrier.Load() == nil {
		carry(w, key)
	}
}

// carry stores the key to save the floor with.
func carry[K comparable](w *wallWindows, key K) {
	carrier := any(key)
	w.carrier.Store(&carrier)
}

// countsAgain reports whether a key's spending in a past window would count again if the wall clock were set
// back. While there is room, the limiter keeps such a key, so no other key has to begin in a later window.
func (w *wallWindows) countsAgain(s meter.State) bool { return s.N > 0 && s.M >= w.floor.Load() }

// floorOf returns the floor for a fresh key, saved in state s and not restored. It is
// the key's latest window, or the present window if the key has spent in its latest.
func (w *wallWindows) floorOf(s meter.State, now int64) int64 {
	if s.N == 0 {
		return s.M
	}
	return max(s.M, w.At(now).Ordinal)
}

// passed notes a reading: spending before its window may be forgotten, so no key is created again in earlier windows.
func (w *wallWindows) passed(at int64) { raise(&w.floor, w.At(at).Ordinal) }

// evicted records the eviction, at a reading, of a key that has reached the ordinal's window. If
// the reading is later than the present one, the key may have used windows beyond the wall clock's.
func (w *wallWindows) evicted(ordinal, at int64, remembered bool) {
	raise(&w.latest, ordinal)
	if !remembered {
		w.passed(at)
	}
}

// restored records a saved floor.
func (w *wallWindows) restored(floor int64) { raise(&w.floor, floor) }

// floorWith returns the floor to save. An unsaved fresh key has reached the ordinal's window, unless the ordinal is 0.
func (w *wallWindows) floorWith(ordinal int64) int64 {
	return max(ordinal, w.floor.Load())
}
