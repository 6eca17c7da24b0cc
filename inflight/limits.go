package inflight

import (
	"errors"
	"slices"
	"time"

	"github.com/weir-go/ratelimit/internal/optional"
)

// SetLimit replaces New's limit for the keys without their own. If the limit is below 1,
// it returns an error and changes nothing. Its time is proportional to the number of keys.
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
		if e.configured == 0 {
			now = e.atLocked(now)
			e.boundLocked(limit, now)
			l.changedLocked(e, now)
		}
		e.unlockAfter(busy)
	}
	l.allChanged()
	return nil
}

// SetTotal replaces [Options.Total]. If the limiter has no Total, or n is below 1, it returns an error and changes
// nothing.
func (l *Limiter[K]) SetTotal(n int) error {
	l.made()
	p := l.common.pool
	if !l.hasTotal {
		return errors.New("inflight: SetTotal, but Options.Total was not set")
	}
	if err := optional.AtLeastOne("inflight: the total", n); err != nil {
		return err
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

// Refresh calls [Options.LimitFor], [Options.Weight] and [Options.Priority] again for the given keys, or for all keys
// if none is given. The results are in force when Refresh returns.
func (l *Limiter[K]) Refresh(keys ...K) {
	l.made()
	l.setting.Lock()
	l.refreshed.Store(l.numbers.Add(1)) // refreshed never falls
	l.setting.Unlock()
	for _, e := range l.entries(keys) {
		l.reconfigure(e)
	}
	l.allChanged()
}

// changedLocked admits fitting waiters after a change of one key. If all keys share one pool it does nothing. Then
// allChanged admits them after all keys have changed, because otherwise the first key would take a later one's room.
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

// reconfigure calls the functions in Options again for a key and applies their results.
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

// entries returns the entries of the given tracked keys, or all entries if no key is given.
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
