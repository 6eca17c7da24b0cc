package redislimit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
)

// group sends this process's regular calls to one server: the beats of its keys' lines, and the
// extensions of the permits of [Semaphore.Do]. A call serves up to 64 keys. On a cluster, whose keys
// are in several slots, calls for one key each share round trips instead. Semaphore.mu guards it.
type group struct {
	s      *Semaphore
	single bool // each key has its own call
	lines  []*localLine
	beats  *time.Timer // the timer for the lines; nil if none is due
	kept   map[*Permit]*keeping
	renews *time.Timer // the timer for the permits; nil if none is due
}

// groupOf returns a key's group, or nil if the key's server is not known.
func (s *Semaphore) groupOf(redisKey string) *group {
	addr, single := "", false
	switch c := s.store.user.(type) {
	case *redis.Client:
	case *redis.Ring:
		server, err := c.GetShardClientForKey(redisKey)
		if err != nil {
			return nil
		}
		addr = server.Options().Addr
	default:
		single = s.total == 0
	}
	g := s.groups[addr]
	if g == nil {
		g = &group{s: s, single: single, kept: make(map[*Permit]*keeping)}
		s.groups[addr] = g
	}
	return g
}

// add puts the next beat of a line into the group.
func (g *group) add(l *localLine) {
	l.group = g
	g.lines = append(g.lines, l)
	if g.beats == nil {
		g.beats = time.AfterFunc(spread(beatEvery), g.beat)
	}
}

// leaveGroup takes the next beat of a line out of its group. It reports whether it was there.
func (l *localLine) leaveGroup() bool {
	g := l.group
	if g == nil {
		return false
	}
	l.group = nil
	if i := slices.Index(g.lines, l); i >= 0 {
		g.lines[i] = g.lines[len(g.lines)-1]
		g.lines = slices.Delete(g.lines, len(g.lines)-1, len(g.lines))
	}
	if len(g.lines) == 0 && g.beats != nil && g.beats.Stop() {
		g.beats = nil
	}
	return true
}

// beat makes the due beats.
func (g *group) beat() {
	g.s.mu.Lock()
	lines := g.lines
	for _, l := range lines {
		l.group = nil
	}
	g.lines, g.beats = nil, nil
	apart := g.single || g.s.apart
	g.s.mu.Unlock()
	if apart || len(lines) == 1 {
		for _, l := range lines {
			go l.beat()
		}
		return
	}
	for some := range slices.Chunk(lines, maxBeatKeys) {
		go g.beatTogether(some)
	}
}

func (g *group) beatTogether(lines []*localLine) {
	var all []slotsOf
	var beats []*beatCall
	var beating []*localLine
	for _, l := range lines {
		if b := l.nextBeat(); b != nil {
			all = append(all, slotsOf{l.redisKey, b.level, b.payload})
			beats, beating = append(beats, b), append(beating, l)
		}
	}
	if len(all) == 0 {
		return
	}
	replies, err := g.s.runTogether(context.Background(), g.s.scripts.beats, all)
	if g.refuses(err) {
		for _, l := range beating {
			go l.beat()
		}
		return
	}
	for i, l := range beating {
		l.learn(beats[i], at(replies, i), err)
	}
}

// refuses reports whether a server has answered a call for several keys with an error. Later calls are then for one key each.
func (g *group) refuses(err error) bool {
	if err == nil || answerOf(err) == "" {
		return false
	}
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	g.s.apart = g.s.apart || redis.HasErrorPrefix(err, "CROSSSLOT")
	return true
}

// at returns the i-th text, or "" if there are fewer.
func at(texts []string, i int) string {
	if i < len(texts) {
		return texts[i]
	}
	return ""
}

// slotsOf is the part of one key in a call for several.
type slotsOf struct {
	redisKey string
	level    int64
	payload  []byte
}

// runTogether runs a script for several keys of a server, and returns its replies.
func (s *Semaphore) runTogether(ctx context.Context, of *script, all []slotsOf) ([]string, error) {
	c := &call{script: of, test: s.store.testWords()}
	if s.total > 0 {
		c.payload = put7(put7(nil, s.total), highest)
	}
	for i, r := range all {
		c.keys = append(c.keys, r.redisKey)
		if s.total == 0 {
			c.payload = append(put7(c.payload, int64(len(r.payload))), r.payload...)
			continue
		}
		if i == 0 {
			c.keys = append(c.keys, s.shared...)
		}
		c.payload = append(put7(put7(c.payload, int64(7+len(r.payload))), r.level), r.payload...)
	}
	reply, err := s.eval(ctx, c)
	if err != nil {
		return nil, err
	}
	replies := make([]string, 0, len(all))
	for len(reply) >= 7 {
		n := get7(reply)
		if n < 0 || n > int64(len(reply)-7) {
			return nil, errAnswer
		}
		replies = append(replies, reply[7:7+n])
		reply = reply[7+n:]
	}
	if len(replies) != len(all) {
		return nil, errAnswer
	}
	return replies, nil
}

// keeping is a permit, extended until its work has ended.
type keeping struct {
	p    *Permit
	last time.Time // when the last successful extension was sent
	next time.Time // when the next one is due
	lose context.CancelCauseFunc
}

// keep extends a permit every third of Hold until stop is called. The slots
// are lost if Redis reports it, or if it has not answered for the whole Hold.
func (s *Semaphore) keep(p *Permit, lose context.CancelCauseFunc) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groupOf(p.redisKey)
	if g == nil { // without a group its shard is down or the client is closed, and the extensions fail
		g = &group{s: s, single: true, kept: make(map[*Permit]*keeping)}
	}
	last := p.ends.Add(-s.hold)
	g.kept[p] = &keeping{p: p, last: last, next: last.Add(s.hold / 3), lose: lose}
	g.renewLater()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(g.kept, p)
		if len(g.kept) == 0 && g.renews != nil && g.renews.Stop() {
			g.renews = nil
		}
	}
}

// renewLater sets the timer of the next extension, unless it is set.
func (g *group) renewLater() {
	if g.renews != nil || len(g.kept) == 0 {
		return
	}
	var next time.Time
	for _, k := range g.kept {
		if next.IsZero() || k.next.Before(next) {
			next = k.next
		}
	}
	g.renews = time.AfterFunc(time.Until(next), g.renew)
}

// renew extends the permits due now or soon.
func (g *group) renew() {
	g.s.mu.Lock()
	var due []*keeping
	now, hold := time.Now(), g.s.hold
	first := now
	for _, k := range g.kept {
		if k.next.Before(now.Add(hold / 12)) {
			due = append(due, k)
			k.next = now.Add(hold / 12) // the time of a second attempt, if this one fails
			if k.last.Before(first) {
				first = k.last
			}
		}
	}
	apart := g.single || g.s.apart
	g.s.mu.Unlock()
	ctx, cancel := context.WithDeadline(context.Background(), first.Add(hold))
	defer cancel()
	size := maxBeatKeys
	if apart {
		size = 1
	}
	done := make(chan struct{})
	calls := 0
	for some := range slices.Chunk(due, size) {
		calls++
		go func() {
			g.extend(ctx, some)
			done <- struct{}{}
		}()
	}
	for range calls {
		<-done
	}
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	g.renews = nil
	g.renewLater()
}

// extend extends permits in one call.
func (g *group) extend(ctx context.Context, due []*keeping) {
	sent := time.Now()
	if len(due) == 1 {
		g.extended(due[0], due[0].p.Extend(ctx), sent)
		return
	}
	all := make([]slotsOf, len(due))
	for i, k := range due {
		all[i] = slotsOf{k.p.redisKey, k.p.level, []byte(k.p.request)}
	}
	replies, err := g.s.runTogether(ctx, g.s.scripts.extends, all)
	refused := g.refuses(err)
	for i, k := range due {
		if refused {
			g.extended(k, k.p.Extend(ctx), time.Now())
		} else {
			g.extended(k, k.p.extended(at(replies, i), err, sent), sent)
		}
	}
}

// extended records an extension's result.
func (g *group) extended(k *keeping, err error, sent time.Time) {
	g.s.mu.Lock()
	lost := false
	switch {
	case g.kept[k.p] != k: // the work has ended
	case err == nil:
		k.last, k.next = sent, sent.Add(g.s.hold/3)
	case errors.Is(err, ratelimit.ErrLost), time.Since(k.last) >= g.s.hold:
		lost = true
		delete(g.kept, k.p)
	}
	g.s.mu.Unlock()
	if lost {
		g.s.lost(k.p)
		k.lose(ErrLost)
	}
}
