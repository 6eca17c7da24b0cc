package ratelimit

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
)

// All returns an iterator over the tracked keys, in no order, with [Keyed.Peek]'s answer to a
// cost of 1. If a key's last request had its own limit, as in a layer with a Limit function, the
// answer is by that limit. A key may be tracked for some time after it is fresh. No lock is held
// in the loop's body. If a key comes or goes during the loop, it appears once or not at all.
func (l *Keyed[K]) All() iter.Seq2[K, Decision] {
	t := l.table()
	return func(yield func(K, Decision) bool) {
		for e := range t.accounts.All() {
			key, a := t.lockListed(e)
			if a == nil {
				continue
			}
			p := a.plan
			a.mu.Unlock()
			var d Decision // the error adds nothing: d shows that no cost of 1 passes
			if l.isOfRequest(p) {
				d, _ = l.peek(key, p, 1)
			} else {
				d, _ = l.Peek(context.Background(), key, 1)
			}
			if !yield(key, d) {
				return
			}
		}
	}
}

// Saved is one key's spending, as bytes that outlive the program, without
// the key. Later versions of this package read it. See [Keyed.Saved].
type Saved []byte

// savedVersion is a Saved's first byte.
const savedVersion = 1

// Saved returns an iterator over all keys but fresh ones, in no order, with each key's spending,
// to be stored for [Keyed.Restore] when the program starts again. Under a [Calendar] it may also
// return one fresh key. Evicted keys are not saved, even if [Options.Remember] remembers them.
//
// Instants count from the loop's beginning: note the wall clock then or later. Spending after the loop
// has passed the key is not saved, so stop the traffic first. No lock is held in the loop's body. A
// key takes 15 to 20 bytes, 60 under a calendar, and 5 to 15 for each booking or spending in a log.
func (l *Keyed[K]) Saved() iter.Seq2[K, Saved] {
	t := l.table()
	return func(yield func(K, Saved) bool) {
		s := saver[K]{table: t, now: reading(l.clock), floors: map[*wallWindows]*savedFloor[K]{}}
		for e := range t.accounts.All() {
			if key, saved := s.save(e); saved != nil && !yield(key, saved) {
				return
			}
		}
		for p, w := range l.generation.Load().dates.all() {
			if key, saved := s.saveFloor(p, w); saved != nil && !yield(key, saved) {
				return
			}
		}
	}
}

// saver saves a table's keys. Meanwhile it determines each calendar's floor: the window before which no key may be
// created again. The floor covers the windows of dropped keys, and the windows of fresh keys, which are not saved.
// For each calendar saver holds one key back until the floor is known, and appends the floor to this key's Saved.
type saver[K comparable] struct {
	table  *table[K]
	now    int64 // the reading for all saved keys
	floors map[*wallWindows]*savedFloor[K]
	buf    []byte // scratch memory
}

// savedFloor is one calendar's floor so far.
type savedFloor[K comparable] struct {
	key     K
	saved   Saved // the Saved of the key held back, or nil
	fresh   bool  // no key is held back, and the field key has a fresh key, not to be saved
	ordinal int64
}

// save looks at an entry, and returns the next key to be yielded. The Saved is nil if there is none.
func (s *saver[K]) save(e *entry[K]) (key K, saved Saved) {
	key, a := s.table.lockListed(e)
	if a == nil {
		return key, nil
	}
	w, reached := a.plan.wall, a.M
	fresh := a.plan.holds() || a.fresh(s.now) && (w == nil || a.N == 0)
	if !fresh {
		s.buf = a.appendSaved(s.buf[:0], s.now)
	}
	a.mu.Unlock()
	if !fresh {
		saved = bytes.Clone(s.buf)
	}
	if w == nil {
		return key, saved
	}
	return s.floorOf(w).holdBack(key, saved, reached)
}

func (s *saver[K]) floorOf(w *wallWindows) *savedFloor[K] {
	if s.floors[w] == nil {
		s.floors[w] = new(savedFloor[K])
	}
	return s.floors[w]
}

// holdBack holds a key back and returns the previous one. If saved is nil, the key is fresh, and holdBack only notes it.
func (f *savedFloor[K]) holdBack(key K, saved Saved, reached int64) (K, Saved) {
	if saved == nil {
		f.ordinal = max(f.ordinal, reached)
		if f.saved == nil {
			f.key, f.fresh = key, true
		}
		return key, nil
	}
	before, held := f.key, f.saved
	f.key, f.saved = key, saved
	return before, held
}

// saveFloor returns the key whose Saved ends with a calendar's floor. All keys have been
// looked at. The Saved is nil if neither a floor nor a key is left to save. If no key of
// the calendar is saved, the floor is saved with a fresh key, or with a dropped one.
func (s *saver[K]) saveFloor(p Period, w *wallWindows) (key K, saved Saved) {
	f := s.floorOf(w)
	ordinal := w.floorWith(f.ordinal)
	switch {
	case ordinal == 0:
		return f.key, f.saved
	case f.saved != nil:
		return f.key, binary.AppendUvarint(f.saved, uint64(ordinal))
	case !f.fresh:
		if carrier := w.carrier.Load(); carrier != nil {
			f.key = (*carrier).(K)
			f.fresh = s.table.accounts.Candidate(f.key) == nil
		}
	}
	if !f.fresh {
		return key, nil
	}
	plan := plan{limit: Calendar(1, p), Meter: calendarMeter(1, w)}
	saved = (&account{plan: &plan, State: meter.State{M: ordinal}}).appendSaved(nil, 0)
	return f.key, saved
}

// appendSaved appends the key's spending to buf. The caller holds the lock, and
// has just found the key not fresh. This check has brought the state up to date.
func (a *account) appendSaved(buf []byte, reading int64) []byte {
	limit := a.plan.limit
	buf = append(buf, savedVersion, byte(limit.Algorithm))
	if limit.Algorithm == AlgorithmCalendar {
		text := limit.Named("").String()
		buf = append(binary.AppendUvarint(buf, uint64(len(text))), text...)
	} else {
		buf = binary.AppendUvarint(buf, uint64(limit.Rate.Units))
		buf = binary.AppendUvarint(buf, uint64(limit.Rate.Per))
	}
	if limit.Algorithm.isBucket() {
		buf = binary.AppendUvarint(buf, uint64(limit.Burst))
	}
	// If the clock has stepped back, time stands still for the key until a.last.
	now := max(reading, a.last)
	buf = binary.AppendUvarint(buf, uint64(between(reading, now)))
	return a.plan.AppendState(buf, a.State, now)
}

// isBucket reports whether limits of the algorithm have a burst.
func (a Algorithm) isBucket() bool {
	return a == AlgorithmTokenBucket || a == AlgorithmLeakyBucket
}

// Restore charges keys for the spending from [Keyed.Saved], elapsed after it was saved; a negative elapsed counts
// as zero. If no more time than elapsed has really passed, no key has more budget than if the program had run on.
//
// Call it before the traffic begins: a tracked key is charged in addition to its
// spending, and each further call charges again. Bookings stay, but their reservations
// are over. A key is under its old limit until its next decision: see [Keyed.SetLimit].
//
// Restore skips a Saved if it is damaged or has an unknown version. It skips a key if it is invalid, or finds
// no room in the table. The errors are joined; each names its pair's index, from 0. A Saved has no checksum.
func (l *Keyed[K]) Restore(seq iter.Seq2[K, Saved], elapsed time.Duration) error {
	l.requireInit()
	if seq == nil {
		return optional.Nil("ratelimit: Restore: seq")
	}
	began, i := reading(l.clock), 0
	var errs []error
	floors := map[*wallWindows]int64{}
	for key, saved := range seq {
		if err := l.restore(key, saved, began, max(0, elapsed), floors); err != nil {
			errs = append(errs, fmt.Errorf("ratelimit: saved key %d: %w", i, err))
		}
		i++
	}
	for w, floor := range floors { // only now, because the restored keys have recorded their windows
		w.restored(floor)
	}
	return errors.Join(errs...)
}

// restore restores one key. At the reading began, elapsed had passed since the key was
// saved. restore raises floors, the windows before which no other key may be created again.
func (l *Keyed[K]) restore(key K, saved Saved, began int64, elapsed time.Duration, floors map[*wallWindows]int64) error {
	if err := l.check(key, 0); err != nil {
		return err
	}
	now := reading(l.clock)
	p, r, err := l.parse(saved, meter.Add(int64(elapsed), max(0, now-began)))
	if err != nil {
		return err
	}
	s, last, err := r.state(p, now)
	if err != nil {
		return err
	}
	fresh := max(last, p.Forgotten(s)) <= now
	if w := p.wall; w != nil {
		floors[w] = max(floors[w], r.floor)
		if fresh && w.countsAgain(s) && l.keys.hasRoom() {
			fresh = false
		} else if fresh {
			floors[w] = max(floors[w], w.floorOf(s, now))
			if w.carrier.Load() == nil { // to save the floor again, although no key is saved
				carry(w, l.keys.maker.Clone(key))
			}
		}
	}
	if fresh {
		return nil
	}
	a, at, inserted, err := l.keys.acquire(key, p, l.clock, false)
	if err != nil {
		return err
	}
	defer a.mu.Unlock()
	if !inserted || a.waitedFor() || a.freshAt() > a.last {
		a.last = max(reading(l.clock), a.last, last)
		p.Advance(&s, a.last)
		a.plan.Charge(&a.State, a.last, &p.Meter, s)
		a.use.touched()
		return nil
	}
	if late := a.last - at; late > 0 {
		// The account begins later than the reading now, so all its spending moves later by the difference.
		s, last, _ = r.state(p, min(now+late, maxReading))
	}
	a.last, a.State = max(a.last, last), p.begins(s)
	a.use.touched()
	return nil
}

// savedState is the part of a Saved after its limit.
type savedState struct {
	data   []byte
	passed int64 // how long the key has regained
	still  int64 // how long time stands still for the key
	floor  int64 // the ordinal of the calendar's window before which no key may be created again
}

// state returns the key's spending at a reading. It also returns the key's highest recorded reading, at least the given one.
func (r *savedState) state(p *plan, reading int64) (s meter.State, last int64, err error) {
	last = min(reading+r.still, maxReading)
	s, rest, err := p.ReadState(r.data, last, r.passed)
	switch {
	case errors.Is(err, meter.ErrShort):
		return s, last, errSavedShort
	case err != nil:
		return s, last, errSavedGarbage
	case len(rest) > 0 && p.wall != nil: // the floor follows
		rest := savedState{data: rest}
		if err = rest.figures(&r.floor); err == nil && (len(rest.data) > 0 || r.floor >= meter.MostOrdinal) {
			err = errSavedGarbage
		}
		return s, last, err
	case len(rest) > 0:
		return s, last, errSavedGarbage
	}
	return s, last, nil
}

var (
	errSavedShort   = errors.New("it is cut short")
	errSavedGarbage = errors.New("it is damaged, or not a Saved")
)

// parse returns a saved key's plan, and the state after it in the bytes.
func (l *Keyed[K]) parse(saved Saved, passed int64) (p *plan, r savedState, err error) {
	if len(saved) == 0 {
		return nil, r, errSavedShort
	}
	if saved[0] != savedVersion {
		return nil, r, fmt.Errorf("its version is %d, and this program knows version %d", saved[0], savedVersion)
	}
	if len(saved) == 1 {
		return nil, r, errSavedShort
	}
	limit := Limit{Algorithm: Algorithm(saved[1])}
	r.data = saved[2:]
	var units, per, burst, text, still int64
	figures := []*int64{&units, &per, &burst}[:2]
	switch {
	case limit.Algorithm == AlgorithmCalendar:
		figures = []*int64{&text}
	case limit.Algorithm.isBucket():
		figures = figures[:3]
	}
	if err = r.figures(figures...); err != nil {
		return nil, r, err
	}
	if text > int64(len(r.data)) {
		return nil, r, errSavedShort
	} else if text > 0 {
		if limit, err = ParseLimit(string(r.data[:text])); err != nil || limit.Algorithm != AlgorithmCalendar {
			return nil, r, errSavedGarbage
		}
		r.data = r.data[text:]
	} else {
		if units > math.MaxInt || burst > math.MaxInt {
			return nil, r, errSavedGarbage // the number is too large for a machine of 32 bits
		}
		limit.Rate, limit.Burst = Rate{int(units), time.Duration(per)}, int(burst)
	}
	if err = r.figures(&still); err != nil {
		return nil, r, err
	}
	if p, err = l.savedPlan(limit); err != nil {
		return nil, r, err
	}
	if !p.tracks() {
		return nil, r, errSavedGarbage
	}
	still = min(still, maxReading)
	r.still = max(0, still-passed)
	r.passed = max(0, passed-still)
	return p, r, nil
}

// figures reads one number for each pointer.
func (r *savedState) figures(all ...*int64) error {
	for _, figure := range all {
		n, size := binary.Uvarint(r.data)
		switch {
		case size == 0:
			return errSavedShort
		case size < 0 || n > math.MaxInt64:
			return errSavedGarbage
		}
		*figure, r.data = int64(n), r.data[size:]
	}
	return nil
}
