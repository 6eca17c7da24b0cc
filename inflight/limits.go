package inflight

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// SetLimit replaces New's limit, for the keys that have none of their own. Where it is
// raised, those who wait are let in. Where it is lowered below what is in flight, nobody
// is cut off, and nobody let in until it fits; those who wait for more than the
// new limit get [ratelimit.ErrExceedsLimit]. It takes time in proportion to the number
// of keys. The error says that the limit is below 1, and nothing has changed then.
func (l *Limiter[K]) SetLimit(limit int) error {
	l.made()
	if err := checkLimit(limit); err != nil {
		return err
	}
	l.setting.Lock()
	defer l.setting.Unlock()
	l.base.Store(int64(limit))
	for _, e := range l.entries(nil) {
		now := l.common.reading(true)
		e.mutex().Lock()
		busy := !e.idleLocked()
		if e.told == 0 {
			now = e.atLocked(now)
			e.boundLocked(limit, now)
			l.changedLocked(e, now)
		}
		e.unlockAfter(busy)
	}
	l.allChanged()
	return nil
}

// SetTotal replaces [Options.Total]; with [Options.Shared] that is the upper bound of the shared
// limit. Where it is lowered below what is in flight, nobody is cut off; those who wait for
// more than the new total get [ratelimit.ErrExceedsLimit]. It takes time in proportion to the number of
// waiters. The error says that the limiter has no Total, or that it is below 1; nothing has changed then.
func (l *Limiter[K]) SetTotal(n int) error {
	l.made()
	p := l.common.pool
	switch {
	case !l.hasTotal:
		return errors.New("inflight: SetTotal, but Options.Total was not set")
	case n < 1:
		return fmt.Errorf("inflight: the total is %d, want 1 or more", n)
	}
	l.setting.Lock()
	defer l.setting.Unlock()
	now := l.common.reading(true)
	l.common.mu.Lock()
	defer l.common.mu.Unlock()
	total := n
	if p.learner != nil {
		total = p.learner.limit(n)
	}
	p.setLocked(total, n)
	for _, s := range p.waitersLocked() {
		s.expelLocked()
	}
	p.changedLocked(l.common.atLocked(now))
	return nil
}

// Refresh asks [Options.LimitFor], [Options.Weight] and [Options.Priority] again, for some keys, or for all if
// none is given. What they say is in force when it returns, as by [Limiter.SetLimit].
func (l *Limiter[K]) Refresh(keys ...K) {
	l.made()
	l.refreshed.Store(l.asked.Add(1))
	for _, e := range l.entries(keys) {
		l.reconfigure(e)
	}
	l.allChanged()
}

// changedLocked lets in who fits after a key has changed. If all keys have one pool, allChanged does that once all of
// them have changed: else the first one would take what belongs to a later one.
func (l *Limiter[K]) changedLocked(e *entry[K], now time.Duration) {
	if l.common.pool == nil {
		e.handOnLocked(now)
	}
}

func (l *Limiter[K]) allChanged() {
	if p := l.common.pool; p != nil {
		now := l.common.reading(true)
		l.common.mu.Lock()
		p.changedLocked(l.common.atLocked(now))
		l.common.mu.Unlock()
	}
}

// reconfigure asks again what holds for a key, and puts it into force.
func (l *Limiter[K]) reconfigure(e *entry[K]) {
	cfg := l.configOf(e.key)
	now := l.common.reading(true)
	e.mutex().Lock()
	busy := !e.idleLocked()
	now = e.atLocked(now)
	e.configureLocked(cfg, int(l.base.Load()), now)
	l.changedLocked(e, now)
	e.unlockAfter(busy)
}

// entries returns those of the keys, or of all if there are none, that are tracked.
func (l *Limiter[K]) entries(keys []K) []*entry[K] {
	l.made()
	if len(keys) > 0 {
		keys = slices.DeleteFunc(slices.Clone(keys), func(key K) bool { return l.keys.err(key) != nil })
		if len(keys) == 0 {
			return nil
		}
	}
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	return l.table.entriesLocked(keys)
}
