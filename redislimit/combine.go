package redislimit

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// flights is how many round trips of a sender are under way at once, as long as calls
// wait to share the next one: the server works on one while another's answers are read and
// a third is being made.
const flights = 3

// combiner lets calls that are under way at once share round trips. Nobody waits for
// company: a call that comes while fewer than three round trips are under way is sent
// at once, by its caller. The others queue. Whenever a round trip ends, one of those in
// the queue is told to lead: it sends the whole queue, up to the batch size, as one
// pipeline. So there is no goroutine of the package's own, and nothing to close.
type combiner struct {
	mu     sync.Mutex // guards the fields below, those of batches, and batch of the tickets in them
	flying int        // round trips under way, led or about to be
	queue  []*ticket
	watch  watch
}

// batch is what one of its tickets sends for all.
type batch struct {
	tickets []*ticket
	leader  *ticket
	started bool // from then on the tickets stay as they are, and none can be taken back
}

// combine runs a ticket's script, alone or with others. The context has the caller's
// deadline and the timeout's.
func (s *sender) combine(ctx context.Context, t *ticket) {
	c := &s.combiner
	c.mu.Lock()
	if c.flying < flights {
		c.flying++
		c.mu.Unlock()
		defer s.land()
		s.alone(ctx, t)
		return
	}
	queued := &ticket{script: t.script, keys: t.keys, payload: t.payload, test: t.test, wake: make(chan struct{}, 1)}
	queued.deadline, _ = ctx.Deadline()
	c.queue = append(c.queue, queued)
	_, own := ctx.(*deadline) // and no caller's context that may end
	if own {
		c.watch.add(queued)
	}
	c.mu.Unlock()
	if err, sent := s.await(ctx, queued, own); err != nil {
		t.err, t.sent = err, sent // what is queued may still be written by whoever sends it
		return
	}
	t.reply, t.err, t.sent = queued.reply, queued.err, queued.sent
}

// await waits until the ticket is answered, if need be by leading. If the context ends
// first it returns why, and whether the ticket may have been sent. Of a ticket that is
// watched only the deadline can come first.
func (s *sender) await(ctx context.Context, t *ticket, watched bool) (err error, sent bool) {
	if watched {
		<-t.wake
		if t.turn.Load() == isLate {
			return context.DeadlineExceeded, t.tooLate
		}
	} else if err, sent = s.awaitEither(ctx, t); err != nil {
		return err, sent
	}
	if t.batch.leader == t {
		s.lead(t.batch)
	}
	return nil, false
}

// awaitEither waits until the ticket is woken, or its context ends.
func (s *sender) awaitEither(ctx context.Context, t *ticket) (err error, sent bool) {
	select {
	case <-t.wake:
		return nil, false
	case <-ctx.Done():
	}
	if s.leave(t) {
		return ctx.Err(), false
	}
	select {
	case <-t.wake:
		return nil, false
	default:
		return ctx.Err(), true
	}
}

// land ends a round trip, and lets the next one start.
func (s *sender) land() {
	c := &s.combiner
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch.trim()
	s.startLocked()
}

// startLocked hands a round trip that has ended to those in the queue.
func (s *sender) startLocked() {
	c := &s.combiner
	n := min(len(c.queue), s.batch)
	if n == 0 {
		c.flying--
		return
	}
	b := &batch{tickets: slices.Clone(c.queue[:n])}
	c.queue = slices.Delete(c.queue, 0, n)
	for _, t := range b.tickets {
		t.batch = b
	}
	b.appointLocked()
}

// appointLocked tells one of a batch to send it: the one that may stay longest, so that
// its own deadline cuts nobody short. The others leave at theirs.
func (b *batch) appointLocked() {
	b.leader = b.tickets[0]
	for _, t := range b.tickets {
		if t.staysLonger(b.leader) {
			b.leader = t
		}
	}
	b.leader.turn.take(isWoken) // whoever is late is in no batch any more
	b.leader.wake <- struct{}{}
}

func (t *ticket) staysLonger(than *ticket) bool {
	return t.deadline.IsZero() || !than.deadline.IsZero() && t.deadline.After(than.deadline)
}

// leave takes a ticket back that has not been sent, and reports whether it was in time.
// If the ticket was about to lead, another takes its place.
func (s *sender) leave(t *ticket) bool {
	s.combiner.mu.Lock()
	defer s.combiner.mu.Unlock()
	return s.leaveLocked(t)
}

func (s *sender) leaveLocked(t *ticket) bool {
	c, b := &s.combiner, t.batch
	switch {
	case b == nil:
		c.queue = without(c.queue, t)
		return true
	case b.started:
		return false
	}
	b.tickets = without(b.tickets, t)
	switch {
	case b.leader != t:
	case len(b.tickets) > 0:
		b.appointLocked()
	default:
		s.startLocked()
	}
	return true
}

func without(tickets []*ticket, t *ticket) []*ticket {
	return slices.DeleteFunc(tickets, func(o *ticket) bool { return o == t })
}

// start fixes a batch, which its leader is about to send.
func (s *sender) start(b *batch) {
	s.combiner.mu.Lock()
	defer s.combiner.mu.Unlock()
	b.started = true
}

// lead sends a batch and hands out the answers. The leader's deadline is the latest of
// all, and its own context bounds nobody.
func (s *sender) lead(b *batch) {
	defer b.wakeOthers() // after the next round trip's leader: it shall not wait for them
	defer s.land()
	s.start(b)
	ctx := context.Background()
	if !b.leader.deadline.IsZero() {
		bounded, deadline := withDeadline(ctx, b.leader.deadline)
		defer deadline.stop()
		ctx = bounded
	}
	if len(b.tickets) == 1 {
		s.alone(ctx, b.leader)
		return
	}
	s.pipeline(ctx, b.tickets)
}

func (b *batch) wakeOthers() {
	for _, t := range b.tickets {
		if t != b.leader && t.turn.take(isWoken) {
			t.wake <- struct{}{}
		}
	}
}

// pipeline sends several calls in one round trip: as few as can be.
func (s *sender) pipeline(ctx context.Context, batch []*ticket) {
	sends := batch
	if !s.apart.Load() {
		sends = gather(batch)
	}
	s.send(ctx, sends)
	for _, t := range sends {
		if t.err != nil && len(t.members) > 0 && redis.HasErrorPrefix(t.err, "CROSSSLOT") {
			s.apart.Store(true)
			s.send(ctx, t.members)
		} else {
			t.handOut()
		}
	}
}

// send sends calls in one round trip; in two, if the server does not know the scripts. Then
// the first of each carries the text. A pipeline is not atomic: scripts can be forgotten again
// in the middle of it, so it is repeated for those that were not run. Each time at least
// the first is, or the context ends.
func (s *sender) send(ctx context.Context, batch []*ticket) {
	for _, t := range batch {
		t.call = t.bySHA(ctx)
	}
	s.exec(ctx, batch)
	for again := unknown(batch); len(again) > 0; again = unknown(again) {
		s.teach(ctx, again)
	}
	for _, t := range batch {
		t.reply, t.err, t.sent = t.call.Val(), t.call.Err(), t.call.sent.Load()
	}
}

// unknown returns the tickets whose scripts the server did not know.
func unknown(batch []*ticket) (again []*ticket) {
	for _, t := range batch {
		if t.unknown() {
			again = append(again, t)
		}
	}
	return again
}

func (s *sender) teach(ctx context.Context, batch []*ticket) {
	known := make(map[*script]bool, 1)
	for _, t := range batch {
		if known[t.script] {
			t.call = t.bySHA(ctx)
		} else {
			t.call = t.byText(ctx)
		}
		known[t.script] = true
	}
	s.exec(ctx, batch)
}

// exec sends the tickets' calls. Each call has its own error afterwards.
func (s *sender) exec(ctx context.Context, batch []*ticket) {
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, t := range batch {
			_ = p.Process(ctx, t.call)
		}
		return nil
	})
}
