package redislimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	beatEvery      = 300 * time.Millisecond // the time between the beats of a process with messages
	firstPoll      = 5 * time.Millisecond   // the first time between the beats of a process without messages; it doubles each time
	lastPoll       = 50 * time.Millisecond
	maxBeatCallers = 32 // the maximum number of requests in a beat
	maxBeatKeys    = 64 // the maximum number of keys in a call
)

// localLine is the part of a key's line in this process. It exists while there are callers. Semaphore.mu guards it.
//
// A beat keeps the places in Redis, serves the line there if slots have ended, and finds grants whose messages were lost.
type localLine struct {
	s        *Semaphore
	key      string
	redisKey string
	callers  map[string]*waiter // by attempt
	order    []*waiter          // the callers with a place in Redis, by arrival; some may have gone
	level    int64              // its priority's level
	timer    *time.Timer        // starts the next beat
	group    *group             // the group for its next beat; nil if none
	pending  bool               // a beat is due or under way
	again    bool               // another beat must follow the one under way at once
	poll     time.Duration      // the time until the next beat, without messages
	lastSeen time.Time          // the time of Redis's last answer
	listens  bool               // messages arrive
	lead     int64              // the lead of the server's clock: see Semaphore.leadOf
}

// waiter is a waiting caller of Acquire. Semaphore.mu guards its fields.
type waiter struct {
	p       *Permit
	wake    chan struct{} // has one element if there may be an event
	entered bool          // the waiter is in localLine.order
	gone    bool
	waiterEvent
}

// waiterEvent holds a waiter's events since the last call of takeEvent.
type waiterEvent struct {
	granted time.Time // when the slots were granted, at the latest; zero if they were not
	token   int64     // the grant's token
	again   bool      // the request must be repeated: slots are reserved for it, or it has lost its place
	failed  error     // the error to give up with
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

// join adds a caller before its first call, because its slots may be granted before the answer arrives.
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

// depart removes a caller, and with the last caller the line.
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

// spread returns a random time around the given one, so processes do not call at the same time.
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

// listen records whether messages arrive. Redis has to be informed of a change at once.
func (l *localLine) listen(listens bool) {
	if l.listens != listens {
		l.listens, l.poll = listens, firstPoll
		l.hurry()
	}
}

// limitChanged makes all waiting callers check the new limit, and makes Redis serve them by it.
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

// beatCall is a beat to be sent.
type beatCall struct {
	how     byte
	level   int64
	payload []byte
	waiters []*waiter
	sent    time.Time
}

// beat shows Redis that this process is alive, and handles the states of its oldest requests.
func (l *localLine) beat() {
	b := l.nextBeat()
	if b == nil {
		return
	}
	reply, err := l.s.run(context.Background(), &call{script: l.s.scripts.beat, payload: b.payload}, l.redisKey, b.level)
	l.learn(b, reply, err)
}

// nextBeat prepares a beat, or returns nil if no caller needs one.
func (l *localLine) nextBeat() *beatCall {
	s := l.s
	limit, limitErr := s.limitOrPanic(l.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &beatCall{how: l.howLocked(), level: l.level, waiters: l.oldest(), sent: time.Now()}
	// an invalid limit is 0, and serves no request
	b.payload = append(put7(put7(append(b.payload, b.how), limit), int64(len(b.waiters))), s.process...)
	for _, w := range b.waiters {
		b.payload = append(b.payload, w.p.request...)
	}
	for _, w := range l.callers {
		if panicked := (*limitPanic)(nil); errors.As(limitErr, &panicked) {
			w.failed = limitErr
		}
		if limitErr != nil || int64(w.p.n) > limit {
			w.signal() // it finds that it can never be served
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

// oldest returns the longest waiting callers.
func (l *localLine) oldest() (waiters []*waiter) {
	for _, w := range l.order {
		if !w.gone && w.granted.IsZero() && len(waiters) < maxBeatCallers {
			waiters = append(waiters, w)
		}
	}
	return waiters
}

// found passes a beat's states to the callers. If one request has lost its
// place, all have: Redis considered this process dead, or has lost the key.
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

// message passes a message to its waiter: the slots were granted at a time of the server's clock, or must
// be claimed. The lead is an upper bound, so the slots do not end earlier than this process expects.
func (l *localLine) message(m string) {
	if len(m) != 1+7+attemptSize {
		return // a beat has sent this message to test the channel
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
