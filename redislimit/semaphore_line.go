package redislimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	beatEvery      = 300 * time.Millisecond // between the beats of a process that receives messages
	firstPoll      = 5 * time.Millisecond   // between the beats of a process without messages, and then twice as long each time
	lastPoll       = 50 * time.Millisecond
	maxBeatCallers = 32 // requests of a beat
	maxBeatKeys    = 64 // of a call
)

// localLine is the part of a key's line that waits in this process. It exists while there are callers. Semaphore.mu guards it.
//
// Its beats keep the places in Redis, serve the line there if slots have ended, and find the grants whose messages were lost.
type localLine struct {
	s        *Semaphore
	key      string
	redisKey string
	callers  map[string]*waiter // by attempt
	order    []*waiter          // the callers with a place in Redis, by arrival; some of them have gone
	level    int64              // of its priority
	timer    *time.Timer        // of the next beat
	group    *group             // that makes its next beat; nil if none does
	pending  bool               // a beat is due or under way
	again    bool               // another beat is to follow the one under way at once
	poll     time.Duration      // until the next beat, without messages
	lastSeen time.Time          // when Redis has answered last
	listens  bool               // messages arrive
	lead     int64              // of the server's clock, as Semaphore.leadOf
}

// waiter is a caller of Acquire that waits. Semaphore.mu guards its fields.
type waiter struct {
	p       *Permit
	wake    chan struct{} // has an element if there may be an event
	entered bool          // it is in localLine.order
	gone    bool
	waiterEvent
}

// waiterEvent holds the events of a waiter since the last call of takeEvent.
type waiterEvent struct {
	granted time.Time // the slots are granted, and Hold begins not before this time
	token   int64     // of the grant
	again   bool      // it has to repeat its request: slots are reserved for it, or it has lost its place
	failed  error     // it has to give up
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// takeEvent returns a waiter's events, and clears them.
func (s *Semaphore) takeEvent(w *waiter) waiterEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := w.waiterEvent
	w.waiterEvent = waiterEvent{}
	return e
}

// join adds a caller before its first call: slots may be granted to it before it has the answer.
func (s *Semaphore) join(w *waiter) *localLine {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[w.p.key]
	if l == nil {
		l = &localLine{s: s, key: w.p.key, redisKey: w.p.redisKey, callers: make(map[string]*waiter), poll: firstPoll,
			listens: s.subs.use(w.p.redisKey)}
		s.lines[l.key] = l
	}
	l.level = w.p.level
	l.callers[w.p.attempt()] = w
	return l
}

// depart removes a caller, and the line with the last one.
func (s *Semaphore) depart(l *localLine, w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(l.callers, w.p.attempt())
	w.gone = true
	for len(l.order) > 0 && l.order[0].gone {
		l.order[0] = nil
		l.order = l.order[1:]
	}
	if len(l.callers) == 0 {
		delete(s.lines, l.key)
		l.leaveGroup()
		if l.timer != nil {
			l.timer.Stop()
		}
		s.subs.disuse(l.redisKey)
	}
}

func (l *localLine) how() byte {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.howLocked()
}

func (l *localLine) howLocked() byte {
	if l.listens {
		return howListen
	}
	return howPoll
}

// enter records that Redis has a place in line for a caller.
func (s *Semaphore) enter(l *localLine, w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.lastSeen = time.Now()
	if !w.entered {
		w.entered = true
		if len(l.order) > 2*len(l.callers)+maxBeatCallers {
			l.order = slices.DeleteFunc(l.order, func(w *waiter) bool { return w.gone })
		}
		l.order = append(l.order, w)
	}
	if !l.listens {
		s.subs.want(l)
	}
	l.schedule()
}

// schedule sets the timer of the next beat, unless one is pending.
func (l *localLine) schedule() {
	if l.pending {
		return
	}
	l.pending = true
	if l.listens {
		if g := l.s.groupOf(l.redisKey); g != nil {
			g.add(l)
			return
		}
	}
	wait := beatEvery
	if !l.listens {
		wait = l.poll
		l.poll = min(2*l.poll, lastPoll)
	}
	l.timer = time.AfterFunc(spread(wait), l.beat)
}

// spread returns a random time around the given one, so that processes do not call at once.
func spread(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }

// hurry starts a beat at once.
func (l *localLine) hurry() {
	switch {
	case !l.pending:
		l.pending = true
		go l.beat()
	case l.leaveGroup():
		go l.beat()
	case l.timer != nil && l.timer.Stop():
		go l.beat()
	default:
		l.again = true
	}
}

// listen records whether messages arrive. A change has to reach Redis at once.
func (l *localLine) listen(listens bool) {
	if l.listens != listens {
		l.listens, l.poll = listens, firstPoll
		l.hurry()
	}
}

// limitChanged has all waiting callers look at the limit, and Redis serve them by it.
func (s *Semaphore) limitChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		for _, w := range l.callers {
			w.signal()
		}
		l.hurry()
	}
}

// beatCall is a beat that is about to be sent.
type beatCall struct {
	how     byte
	level   int64
	payload []byte
	waiters []*waiter
	sent    time.Time
}

// beat reports this process as alive, and handles the states of its oldest requests.
func (l *localLine) beat() {
	b := l.nextBeat()
	if b == nil {
		return
	}
	reply, err := l.s.run(context.Background(), &call{script: l.s.scripts.beat, payload: b.payload}, l.redisKey, b.level)
	l.learn(b, reply, err)
}

// nextBeat prepares a beat, nil if no caller needs one.
func (l *localLine) nextBeat() *beatCall {
	s := l.s
	limit, limitErr := s.limitOrPanic(l.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &beatCall{how: l.howLocked(), level: l.level, waiters: l.oldest(), sent: time.Now()}
	b.payload = append(put7(put7(append(b.payload, b.how), limit), int64(len(b.waiters))), s.process...) // an invalid limit is 0, which serves none
	for _, w := range b.waiters {
		b.payload = append(b.payload, w.p.request...)
	}
	for _, w := range l.callers {
		if panicked := (*limitPanic)(nil); errors.As(limitErr, &panicked) {
			w.failed = limitErr
		}
		if limitErr != nil || int64(w.p.n) > limit {
			w.signal() // it notices that it can never be served
		}
	}
	if len(b.waiters) == 0 {
		l.pending, l.again = false, false
		return nil
	}
	return b
}

// learn handles the answer to a beat, and schedules the next one.
func (l *localLine) learn(b *beatCall, reply string, err error) {
	s := l.s
	const head = 1 + 7
	states := head + 8*len(b.waiters)
	if err == nil && len(reply) < states {
		err = errAnswer
	}
	if err == nil {
		s.answered(b.waiters[0].p, b.sent, get7(reply[1:]), reply[states:])
		if reply[0] == channelRefused {
			s.warn("Redis refuses SPUBLISH on its channels")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.pending = false
	if err == nil {
		l.lastSeen = time.Now()
		if b.how == howListen && reply[0] != channelReceived {
			s.subs.failed(l.redisKey)
			l.listens, l.poll = false, firstPoll
		}
		l.found(b.waiters, reply[head:], b.sent)
	} else if time.Since(l.lastSeen) > s.silence {
		for _, w := range l.order {
			w.failed = err
			w.signal()
		}
	}
	if len(l.callers) == 0 {
		return
	}
	if !l.listens {
		s.subs.want(l)
	}
	l.schedule()
	if l.again {
		l.again = false
		l.hurry()
	}
}

// oldest returns the callers that have waited longest.
func (l *localLine) oldest() (waiters []*waiter) {
	for _, w := range l.order {
		if !w.gone && w.granted.IsZero() && len(waiters) < maxBeatCallers {
			waiters = append(waiters, w)
		}
	}
	return waiters
}

// found hands on the states of requests that a beat has returned. If one has lost its place all have: Redis took this process for
// dead, or lost the key.
func (l *localLine) found(waiters []*waiter, states string, sent time.Time) {
	taken, lost := 0, false
	for i, w := range waiters {
		state, token := states[8*i], get7(states[8*i+1:])
		switch {
		case state == slotsTaken:
			taken++
			l.poll = firstPoll
			if !w.gone {
				w.granted, w.token = sent, token
				w.signal()
			}
		case state == slotsLost && !w.gone && w.granted.IsZero():
			lost = true
		}
	}
	l.again = l.again || taken == maxBeatCallers
	for _, w := range l.order {
		if lost && !w.gone && w.granted.IsZero() {
			w.again = true
			w.signal()
		}
	}
}

// message hands on a message: a waiter has its slots since a time of the server's clock, or has to claim them. The lead is an upper
// bound, so they do not end earlier than this process believes.
func (l *localLine) message(m string) {
	if len(m) != 1+7+attemptSize {
		return // the message of a beat that tests the channel
	}
	w := l.callers[m[1+7:]]
	if w == nil {
		return
	}
	since := began.Add(time.Duration(get7(m[1:])-l.lead) * time.Microsecond)
	if m[0] == 'p' && time.Since(since) < l.s.hold {
		w.granted, w.token = since, get7(m[1:])
	} else {
		w.again = true
	}
	w.signal()
}
