package redislimit

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxBatches is the maximum number of batches under way in a lane. With three, the server runs one, the client reads the answers of
// another, and a third one fills.
const maxBatches = 3

// maxStuck is the maximum number of batches without waiting callers in a lane.
const maxStuck = 61

// lane queues the calls to one server. While fewer than three batches are under way, a call is
// sent at once, together with other calls ready at the same moment. Otherwise it queues. When a
// batch is answered, the next batch takes the whole queue, up to the batch size, as one pipeline.
//
// The caller itself sends a call if it need not queue, its context never ends and the client heeds
// deadlines. A goroutine sends all other calls, so a caller can leave when its context ends. A lane
// has at most three such goroutines. Each ends when the queue is empty, so nothing has to be closed.
//
// If the client heeds deadlines, no goroutine outlives its calls' deadlines. If it does
// not, a batch may outlive its callers. Such a stuck batch no longer counts, so later calls
// are sent, and it ends with the client's own timeouts. With 61 stuck batches, calls wait.
type lane struct {
	client    redis.UniversalClient
	batchSize int
	heeds     bool          // the client heeds each call's deadline
	share     atomic.Uint32 // a sharing: which keys may share a call

	// elsewhere returns a key of another server in the cluster, or "" if there is
	// none. The function is nil if keys of several slots must not share a call.
	elsewhere func(key string) string
	checkAt   atomic.Int64 // the earliest time of the next check whether the server refuses foreign keys, in ns

	mu      sync.Mutex // guards the fields below, and the marked fields of calls and batches
	batches int        // batches under way, except stuck ones
	stuck   int

	// The waiting calls in the order of arrival. This is also the order of their deadlines, because all have the same timeout. Sent calls
	// come before unsent ones.
	first, last *call
	unsent      *call // the first unsent call
	queued      int   // unsent calls

	timer *time.Timer // wakes callers whose deadlines have passed
	armed bool
}

func newLane(client redis.UniversalClient, batchSize int, heeds bool) *lane {
	return &lane{client: client, batchSize: batchSize, heeds: heeds}
}

// push appends a call. The caller of push, enqueue, remove and take holds the lock.
func (l *lane) push(c *call) {
	c.prev = l.last
	if l.last != nil {
		l.last.next = c
	} else {
		l.first = c
	}
	l.last = c
}

// enqueue appends a call to be sent later.
func (l *lane) enqueue(c *call) {
	l.push(c)
	c.state = isQueued
	if l.queued++; l.unsent == nil {
		l.unsent = c
	}
}

// remove removes a call from the queue and from its batch.
func (l *lane) remove(c *call) {
	if c.state == isQueued {
		l.queued--
	}
	if l.unsent == c {
		l.unsent = c.next
	}
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.last = c.prev
	}
	c.prev, c.next = nil, nil
}

// take moves the longest waiting calls into a new batch.
func (l *lane) take() *batch {
	n := min(l.queued, l.batchSize)
	b := &batch{calls: make([]*call, 0, n), staying: n}
	for ; n > 0; n-- {
		c := l.unsent
		l.unsent = c.next
		l.queued--
		c.state, c.batch = isInBatch, b
		b.calls = append(b.calls, c)
	}
	return b
}

// run runs a call's script, alone or with others. It returns when the call is answered, at its deadline, or when its context
// ends. With an error, sent is true if the server may have received the call, or still may.
func (l *lane) run(c *call) (reply any, err error, sent bool) {
	l.mu.Lock()
	atOnce := l.batches < maxBatches
	if atOnce {
		l.batches++
	}
	if atOnce && l.heeds && c.ctx.Done() == nil {
		l.mu.Unlock()
		defer l.done()
		return c.runInline(l.client)
	}
	c.wake = make(chan struct{}, 1)
	if atOnce && l.first == nil {
		c.state, c.batch = isInBatch, &c.alone
		c.self[0] = c
		c.alone.calls, c.alone.staying = c.self[:], 1
		l.push(c)
		go l.sendAll(c.batch)
	} else {
		l.enqueue(c)
		if atOnce {
			go l.sendAll(nil)
		}
	}
	if !l.armed {
		l.armLocked(c.deadline)
	}
	l.mu.Unlock()
	return l.await(c)
}

// await waits for a call's answer.
func (l *lane) await(c *call) (reply any, err error, sent bool) {
	select {
	case <-c.wake:
	case <-c.ctx.Done():
		if l.linger(c) {
			break
		}
		if left, sent := l.leave(c); left {
			return nil, c.ctx.Err(), sent
		}
		<-c.wake // it has been answered by now
	}
	return c.answer()
}

// answer returns the answer to an answered or late call.
func (c *call) answer() (reply any, err error, sent bool) {
	if c.state == isLate {
		return nil, context.DeadlineExceeded, c.sent
	}
	return c.reply, c.err, c.batch.written()
}

// linger waits a little longer for a sent call's answer if the call must
// be undone when its context ends. It reports whether the answer came.
func (l *lane) linger(c *call) bool {
	l.mu.Lock()
	sent := c.state == isInBatch
	l.mu.Unlock()
	return sent && c.answeredSoon(c.wake)
}

// leave removes a call whose context has ended, unless its caller is being woken, or the call goes on.
func (l *lane) leave(c *call) (left, sent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.state != isQueued && c.state != isInBatch {
		return false, false
	}
	if c.left = c.outlives() && c.state == isInBatch && c.batch.written(); c.left {
		return true, true
	}
	l.removeLocked(c)
	c.state = isOut
	l.startLocked()
	return true, c.batch.mayArrive()
}

// removeLocked removes a call whose caller no longer waits.
func (l *lane) removeLocked(c *call) {
	l.remove(c)
	b := c.batch
	if b == nil {
		return
	}
	if b.staying--; b.staying == 0 && !l.heeds && l.stuck < maxStuck {
		b.stuck = true
		l.stuck++
		l.batches--
	}
}

// startLocked starts batches in place of stuck ones.
func (l *lane) startLocked() {
	for !l.heeds && l.batches < maxBatches && l.queued > 0 {
		l.batches++
		go l.sendAll(l.take())
	}
}

// done ends a batch whose only call its caller has sent, and starts the next batch.
func (l *lane) done() {
	if b := l.next(nil); b != nil {
		go l.sendAll(b)
	}
}

// next returns an ended batch's successor, or nil if no call waits. A stuck batch has none: its place is taken.
func (l *lane) next(ended *batch) *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ended != nil && ended.stuck:
		l.stuck--
		return nil
	case l.queued == 0:
		l.batches--
		return nil
	}
	return l.take()
}

// sendAll sends batches until no call waits, beginning with the given one, if any.
//
// Before it takes the waiting calls, it yields to other ready goroutines. A caller whose call was just answered often makes another call at
// once, and the calls of several such callers then share a batch.
func (l *lane) sendAll(b *batch) {
	if b == nil {
		runtime.Gosched()
		b = l.next(nil)
	}
	for ; b != nil; b = l.next(b) {
		l.sendBatch(b)
		l.wakeAnswered(b)
		if len(b.calls) > 1 {
			runtime.Gosched()
		}
	}
}

// sendBatch sends a batch's calls.
func (l *lane) sendBatch(b *batch) {
	if len(b.calls) == 1 {
		c := b.calls[0]
		ctx, stop := c.bounded()
		defer stop()
		c.run(ctx, l.client)
		return
	}
	var last time.Time // the latest deadline of all, so no caller's deadline ends another's call
	for _, c := range b.calls {
		if end := c.end(); end.After(last) {
			last = end
		}
	}
	ctx, stop := withDeadline(context.Background(), last)
	defer stop()
	l.pipeline(ctx, b)
}

// wakeAnswered wakes the waiting callers.
func (l *lane) wakeAnswered(b *batch) {
	woken := b.calls[:0]
	l.mu.Lock()
	for _, c := range b.calls {
		if c.state == isInBatch {
			l.remove(c)
			c.state = isAnswered
			woken = append(woken, c)
		}
	}
	l.mu.Unlock()
	for _, c := range woken {
		c.wake <- struct{}{}
	}
}

// armLocked sets the callers' common timer. A timer for each call would rarely fire, and take a tenth of a decision's time.
func (l *lane) armLocked(at time.Time) {
	l.armed = true
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Until(at), l.wakeLate)
	} else {
		l.timer.Reset(time.Until(at))
	}
}

// wakeLate wakes the callers whose deadlines have passed, and sets the timer for the next.
func (l *lane) wakeLate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	now := time.Now()
	var late []*call
	for c := l.first; c != nil; c = l.first {
		if c.deadline.After(now) {
			l.armLocked(c.deadline)
			break
		}
		l.removeLocked(c)
		c.state = isLate
		late = append(late, c)
	}
	for _, c := range late { // only after all have left their batches
		c.sent = c.batch.mayArrive()
		c.wake <- struct{}{}
	}
	l.startLocked()
}

// pipeline sends a batch in as few script calls as possible. A server may refuse a call for several decisions, in whole
// or in part, because it does not serve all the keys. Then pipeline sends each undecided decision once more, by itself.
func (l *lane) pipeline(ctx context.Context, b *batch) {
	sends := gather(b, sharing(l.share.Load()))
	guard := l.guard(b, len(sends))
	if guard != nil {
		sends = append(sends, guard)
	}
	l.send(ctx, sends)
	var alone []*call
	for _, c := range sends {
		switch {
		case c == guard:
			l.learn(c)
		case c.err != nil && len(c.members) > 0 && l.refusedTogether(c):
			alone = append(alone, c.members...)
		default:
			alone = append(alone, c.handOut()...)
		}
	}
	if len(alone) > 0 {
		l.send(ctx, alone)
	}
}

// refusedTogether reports whether the server ran nothing of a call, and may run its decisions one by one.
func (l *lane) refusedTogether(c *call) bool {
	switch {
	case redis.HasErrorPrefix(c.err, "CROSSSLOT"):
		l.share.Store(uint32(shareSlot))
		return true
	case redis.HasErrorPrefix(c.err, "TRYAGAIN"): // the slot is moving, and its keys are on two servers
		return true
	case !c.script.undeclared || answerOf(c.err) == "":
		return false
	case refused(answerOf(c.err)): // a call with a declared key is redirected to the key's new server
		return true
	}
	l.share.Store(uint32(shareSlot)) // a server of another kind has replaced this one
	l.checkAt.Store(time.Now().Add(checkEvery).UnixNano())
	return false
}

// send sends calls at once. If the server does not know their scripts, it sends the calls again, and the first call of each script carries
// the text. The server may forget a script within a pipeline, so send repeats until every call has run or the context ends. Each round runs
// at least the first call.
func (l *lane) send(ctx context.Context, calls []*call) {
	for _, c := range calls {
		c.command = c.bySHA(ctx)
	}
	l.exec(ctx, calls)
	for again := unknown(calls); len(again) > 0; again = unknown(again) {
		l.teach(ctx, again)
	}
	for _, c := range calls {
		c.reply, c.err = c.command.Val(), c.command.Err()
	}
}

// unknown returns the calls whose script the server did not know.
func unknown(calls []*call) (again []*call) {
	for _, c := range calls {
		if c.unknown() {
			again = append(again, c)
		}
	}
	return again
}

func (l *lane) teach(ctx context.Context, calls []*call) {
	known := make(map[*script]bool, 1)
	for _, c := range calls {
		if known[c.script] {
			c.command = c.bySHA(ctx)
		} else {
			c.command = c.byText(ctx)
		}
		known[c.script] = true
	}
	l.exec(ctx, calls)
}

// exec sends the calls' commands, and sets each call's error. It sends calls to a Ring one
// by one: if a Ring is closed during a pipeline, go-redis 9.22 panics in its own goroutine.
func (l *lane) exec(ctx context.Context, calls []*call) {
	if ring, ok := l.client.(*redis.Ring); ok {
		var others sync.WaitGroup
		for _, c := range calls[1:] {
			others.Go(func() { _ = ring.Process(ctx, c.command) })
		}
		_ = ring.Process(ctx, calls[0].command)
		others.Wait()
		return
	}
	_, _ = l.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, c := range calls {
			_ = p.Process(ctx, c.command)
		}
		return nil
	})
}
