package redislimit

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"
)

// SemaphoreStats are a [Semaphore]'s figures: for a key in the fleet, or for all keys in this process. It is an alias
// for an unnamed type. So packages promlimit and otellimit can use [Semaphore.Stats] without importing this package.
type SemaphoreStats = struct {
	InFlight int           // slots in use
	Waiting  int           // callers in line
	Oldest   time.Duration // the oldest permit's age; 0 if there is none
	Lost     uint64        // permits whose slots were found to have ended before their release: other work may have run at the same time
}

// Snapshot returns a key's state in the fleet. It writes nothing, and its time is proportional
// to the number of permits and waiting callers. Lost is 0. Errors are as for TryAcquire.
func (s *Semaphore) Snapshot(ctx context.Context, key string) (SemaphoreStats, error) {
	reply, err := s.look(ctx, key, s.scriptsOf().look)
	if err == nil && len(reply) != 3*7 {
		err = s.failed(errAnswer)
	}
	if err != nil {
		return SemaphoreStats{}, err
	}
	return SemaphoreStats{InFlight: int(get7(reply)), Waiting: int(get7(reply[7:])), Oldest: between(0, get7(reply[14:]))}, nil
}

// scriptsOf returns the scripts. For a Semaphore not made by NewSemaphore it
// returns the scripts without Total, whose call panics with a clear text.
func (s *Semaphore) scriptsOf() *slotScripts {
	if s == nil || s.scripts == nil {
		return slotsAlone
	}
	return s.scripts
}

func (s *Semaphore) look(ctx context.Context, key string, of *script) (reply string, err error) {
	if _, err = s.limitOf(key, 1); err == nil {
		reply, err = s.run(ctx, &call{script: of}, s.space.key(key), highest)
	}
	if err != nil {
		return "", s.failed(err)
	}
	return reply, nil
}

// Holder is any process's permit, as [Semaphore.Holders] returns it.
type Holder struct {
	ID    string // identifies it for [Semaphore.Revoke]
	Units int    // how many slots it holds
	Owner string // the [SemaphoreOptions.Owner] of its process
	Since time.Time
	Until time.Time // when its slots end, by Redis's clock
}

// Holders returns a key's permits, in the order of their ends. Slots granted to a waiting
// caller are not among them until it has claimed them. It writes nothing, and its time is
// proportional to the number of permits and waiting callers. Errors are as for TryAcquire.
func (s *Semaphore) Holders(ctx context.Context, key string) ([]Holder, error) {
	reply, err := s.look(ctx, key, s.scriptsOf().holders)
	if err != nil {
		return nil, err
	}
	var all []Holder
	for len(reply) > 0 {
		const head = attemptSize + 4*7
		if len(reply) < head {
			return nil, s.failed(errAnswer)
		}
		id, figures, rest := reply[:attemptSize], reply[attemptSize:head], reply[head:]
		n := get7(figures[21:])
		if n < 0 || n > int64(len(rest)) {
			return nil, s.failed(errAnswer)
		}
		all = append(all, Holder{ID: hex.EncodeToString([]byte(id)), Units: int(get7(figures)), Owner: rest[:n],
			Since: time.UnixMicro(get7(figures[7:])), Until: time.UnixMicro(get7(figures[14:]))})
		reply = rest[n:]
	}
	return all, nil
}

// Revoke ends a permit of the key, by its [Holder.ID], and so serves the next callers in line. Its work goes
// on until it notices: Extend and Release return [ErrLost], and [Semaphore.Do]'s context ends within a third
// of Hold. The error wraps ErrLost if there is no such permit; otherwise errors are as for TryAcquire.
func (s *Semaphore) Revoke(ctx context.Context, key, id string) error {
	limit, err := s.limitOf(key, 1)
	if err != nil {
		return s.failed(err)
	}
	attempt, err := hex.DecodeString(id)
	if err != nil || len(attempt) != attemptSize {
		return s.failed(fmt.Errorf("%q is not the ID of a permit: %w", id, ErrLost))
	}
	reply, err := s.run(ctx, &call{script: s.scripts.revoke, payload: append(put7(nil, limit), attempt...)}, s.space.key(key), s.levelOf(key))
	switch {
	case err != nil:
		return s.failed(err)
	case len(reply) < 1+7:
		return s.failed(errAnswer)
	case reply[0] == 0:
		return s.failed(ErrLost)
	}
	return nil
}

// Stats returns this process's figures: its permits' slots, its callers in line, its oldest permit's age, and
// how many permits' slots had ended before their release. An unreleased permit counts until Hold has passed.
func (s *Semaphore) Stats() SemaphoreStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.held.prune(now)
	sum := SemaphoreStats{Lost: s.held.lost}
	for _, h := range s.held.permits {
		sum.InFlight += h.n
		sum.Oldest = max(sum.Oldest, now.Sub(h.since))
	}
	for _, l := range s.lines {
		for _, w := range l.callers {
			if w.entered {
				sum.Waiting++
			}
		}
	}
	return sum
}

// heldPermits are this process's permits. Semaphore.mu guards it.
type heldPermits struct {
	permits map[*Permit]*heldPermit
	most    int    // at this number of permits, ended ones are removed
	lost    uint64 // permits whose slots had ended before their release
}

type heldPermit struct {
	n     int
	since time.Time
	ends  time.Time
}

func (h *heldPermits) prune(now time.Time) {
	for p, one := range h.permits {
		if !now.Before(one.ends) {
			delete(h.permits, p)
		}
	}
	h.most = max(2*len(h.permits), 64)
}

// hand counts a permit before it is returned.
func (s *Semaphore) hand(p *Permit) *Permit {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if len(s.held.permits) >= s.held.most {
		s.held.prune(now)
	}
	if s.held.permits == nil {
		s.held.permits = make(map[*Permit]*heldPermit)
	}
	s.held.permits[p] = &heldPermit{p.n, now, p.ends}
	return p
}

// extended records a permit's new end.
func (s *Semaphore) extended(p *Permit, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.held.permits[p]; one != nil {
		one.ends = sent.Add(s.hold)
	}
}

// drop stops counting a permit.
func (s *Semaphore) drop(p *Permit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held.permits, p)
}

// lost counts a permit as lost, once.
func (s *Semaphore) lost(p *Permit) {
	if p.lost.Swap(true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.lost++
	delete(s.held.permits, p)
}
