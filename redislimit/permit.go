package redislimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/wait"
)

// [Permit.Extend] and [Permit.Release] return ErrLost if the permit's slots
// have ended: other work may have begun since. It wraps [ratelimit.ErrLost].
var ErrLost = fmt.Errorf("redislimit: the permit's slots have ended: %w", ratelimit.ErrLost)

// errLate is an error's cause if the answer came after the slots had ended.
var errLate = errors.New("redislimit: the answer came after Hold")

// Permit holds acquired slots. It is safe for concurrent use.
type Permit struct {
	of         *Semaphore
	key        string
	redisKey   string
	request    string // as Redis stores it
	level      int64  // its key's level
	n          int
	token      int64
	limit      atomic.Int64 // the limit of the last call
	ticket     int64        // the number of its place in line; 0 if it has none
	ends       time.Time    // at or before its slots' end; used until the permit is returned
	unanswered atomic.Bool  // Redis has not answered a request for the slots; it may still arrive
	released   atomic.Bool
	retried    atomic.Bool // it is among Semaphore.unreleased
	returned   atomic.Bool // a call has been made to give the slots back; it may have succeeded without an answer
	lost       atomic.Bool // it is counted as lost
}

func (s *Semaphore) permit(key string, n int) *Permit {
	b := append(make([]byte, 0, slotRequestSize+len(s.owner)), s.process...)
	b = append(b, randomBytes(attemptSize)...)
	b = append(put7(put7(b, int64(n)), inMicros(s.hold)), s.owner...)
	return &Permit{of: s, key: key, redisKey: s.space.key(key), request: string(b), level: s.levelOf(key), n: n}
}

func (p *Permit) attempt() string { return p.request[processSize : processSize+attemptSize] }

// Token returns a number that rises with each grant of the key's slots, as long as Redis's clock does not step back.
// It is about when the slots were granted, in µs since 1970. A resource can refuse writes with tokens below the
// highest one so far. So if work has lost its slots without noticing, it does no harm. It is 0 for a nil permit.
func (p *Permit) Token() int64 {
	if p == nil {
		return 0
	}
	return p.token
}

// try takes the slots without waiting.
func (p *Permit) try(ctx context.Context, limit int64) error {
	switch state, err := p.take(ctx, limit, howTry); {
	case err != nil:
		if p.unanswered.Load() {
			p.of.releaseLater(p)
		}
		return err
	case state != slotsTaken && p.of.total > 0:
		return fmt.Errorf("%w: %d of its %d slots of the key, or of the %d of all keys, are not free", ratelimit.ErrLimited, p.n, limit, p.of.total)
	case state != slotsTaken:
		return fmt.Errorf("%w: %d of the semaphore's %d slots are not free", ratelimit.ErrLimited, p.n, limit)
	}
	return p.inTime()
}

// inTime returns an error, and releases the slots, if they have ended before they could be used.
func (p *Permit) inTime() error {
	if time.Now().Before(p.ends) {
		return nil
	}
	p.of.releaseLater(p)
	return &outcome.Undecided{Cause: errLate}
}

// take requests the slots, and a place in line if the caller waits.
//
// A late call is useless. So it carries its caller's time of leaving, by the server's clock. If the server's clock
// has stepped, or the key has moved to another server, the time is wrong: then the call is repeated without it.
func (p *Permit) take(ctx context.Context, limit int64, how byte) (state byte, err error) {
	p.limit.Store(limit)
	sent := time.Now()
	state, err = p.takeBefore(ctx, limit, how, sent, p.of.latest(ctx, p.redisKey, sent))
	if err == nil && state == slotsLate {
		sent = time.Now()
		state, err = p.takeBefore(ctx, limit, how, sent, 0)
	}
	switch {
	case err != nil:
		if errors.Is(err, ratelimit.ErrUnanswered) {
			p.unanswered.Store(true)
		}
		return 0, err
	case state == slotsRevoked:
		return 0, ErrLost
	}
	p.ends = sent.Add(p.of.hold)
	return state, nil
}

func (p *Permit) takeBefore(ctx context.Context, limit int64, how byte, sent time.Time, latest int64) (state byte, err error) {
	c := &call{script: p.of.scripts.take, undone: true}
	c.payload = put7(put7(put7(append(c.payload, how), limit), p.ticket), latest)
	c.payload = append(c.payload, p.request...)
	reply, err := p.of.run(ctx, c, p.redisKey, p.level)
	if err == nil && len(reply) < 1+7+7+7 {
		err = errAnswer
	}
	if err != nil {
		return 0, err
	}
	if state = reply[0]; state == slotsWaiting {
		p.ticket = get7(reply[8:])
	}
	p.token = get7(reply[15:])
	p.of.answered(p, sent, get7(reply[1:]), reply[22:])
	return state, nil
}

// acquire takes the slots once they are free. After an error
// nothing stays in Redis, unless the error's text names what stays.
func (p *Permit) acquire(ctx context.Context) error {
	s := p.of
	limit, err := s.limitOf(p.key, p.n)
	if err != nil {
		return err
	}
	w := &waiter{p: p, wake: make(chan struct{}, 1)}
	l := s.join(w)
	defer s.depart(l, w)
	state, err := p.take(ctx, limit, l.how())
	switch {
	case err != nil && !p.unanswered.Load():
		return err
	case err != nil:
		return p.leave(ctx, err)
	case state == slotsTaken:
		return p.inTime()
	}
	s.enter(l, w)
	for lastAnswer := time.Now(); ; {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return p.leave(ctx, ended(ctx.Err(), false))
		}
		event := s.takeEvent(w)
		switch {
		case !event.granted.IsZero():
			p.ends, p.token = event.granted.Add(s.hold), event.token
			return p.inTime()
		case event.failed != nil:
			return p.leave(ctx, event.failed)
		}
		if limit, err = s.limitOf(p.key, p.n); err != nil {
			return p.leave(ctx, err)
		}
		if !event.again {
			continue
		}
		switch state, err = p.take(ctx, limit, l.how()); {
		case err == nil && state == slotsTaken:
			return p.inTime()
		case err == nil:
			lastAnswer = time.Now()
			s.enter(l, w)
		case ctx.Err() != nil || !errors.Is(err, ratelimit.ErrUnavailable) || time.Since(lastAnswer) > s.silence:
			return p.leave(ctx, err)
		}
	}
}

// leave gives back the place in line, and any slots already taken.
func (p *Permit) leave(ctx context.Context, cause error) error {
	if _, err := p.giveBack(ctx); err != nil {
		return errors.Join(cause, fmt.Errorf("redislimit: the place in line was not given back: %w", err))
	}
	return cause
}

// Extend restarts Hold. The error is [ErrLost] if the slots have ended or were released. It
// wraps [ratelimit.ErrUnavailable] if Redis did not answer. Otherwise it is the context's.
func (p *Permit) Extend(ctx context.Context) error {
	if p == nil || p.released.Load() {
		return ErrLost
	}
	sent := time.Now()
	c := &call{script: p.of.scripts.extend, payload: []byte(p.request)}
	reply, err := p.of.run(ctx, c, p.redisKey, p.level)
	return p.extended(reply, err, sent)
}

// extended returns the result of an extension, sent at the given time.
func (p *Permit) extended(reply string, err error, sent time.Time) error {
	switch {
	case err != nil:
		return err
	case len(reply) != 1+7:
		return errAnswer
	case reply[0] == 0 || time.Since(sent) >= p.of.hold:
		p.of.lost(p)
		return ErrLost
	}
	p.of.extended(p, sent)
	return nil
}

// Release gives the slots back and so serves the next callers in line. It works even if the context has
// ended, within [SemaphoreOptions.Timeout]. If Redis does not answer, it is repeated in the background until
// the slots end. The error is [ErrLost] if the slots had ended before: then other work may have run at the
// same time. After it has returned nil or ErrLost, further calls do nothing. On a nil permit it does nothing.
func (p *Permit) Release(ctx context.Context) error {
	if p == nil {
		return nil
	}
	held, err := p.giveBack(ctx)
	if err == nil && !held {
		p.of.lost(p)
		return ErrLost
	}
	return err
}

// giveBack is Release. It reports whether the slots were held until now, as far as Redis knows.
func (p *Permit) giveBack(ctx context.Context) (held bool, err error) {
	if p.released.Load() {
		return true, nil
	}
	p.of.drop(p)
	held, err = p.release(context.WithoutCancel(wait.OrBackground(ctx)))
	if errors.Is(err, ratelimit.ErrUnavailable) {
		p.of.releaseLater(p)
	}
	return held, err
}

func (p *Permit) release(ctx context.Context) (held bool, err error) {
	repeated := p.returned.Swap(true)
	limit, err := p.of.limitOrPanic(p.key)
	if err != nil {
		limit = p.limit.Load()
	}
	revoked := byte(0)
	if p.unanswered.Load() {
		revoked = 1
	}
	sent := time.Now()
	c := &call{script: p.of.scripts.release}
	c.payload = append(put7(append(c.payload, revoked), limit), p.request...)
	reply, err := p.of.run(ctx, c, p.redisKey, p.level)
	if err == nil && len(reply) < 1+7 {
		err = errAnswer
	}
	if err != nil {
		return false, err
	}
	p.released.Store(true)
	p.of.answered(p, sent, get7(reply[1:]), reply[8:])
	return reply[0] == 1 || repeated, nil
}

const (
	maxUnreleased    = 10_000 // the maximum number of permits to be released again; the slots of others end after Hold
	releasesAtOnce   = 32
	firstReleaseWait = 20 * time.Millisecond // the time before releases are repeated, then twice as long each time
	lastReleaseWait  = time.Second
)

// releaseLater releases a permit in the background, again and again until Redis answers or the slots have ended.
func (s *Semaphore) releaseLater(p *Permit) {
	if !p.retried.CompareAndSwap(false, true) {
		return
	}
	p.ends = time.Now().Add(s.hold + max(0, s.store.timeout))
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unreleased) >= maxUnreleased {
		return
	}
	s.unreleased = append(s.unreleased, p)
	if !s.releasing {
		s.releasing = true
		go s.releaseAll()
	}
}

// releaseAll releases the permits of releaseLater. It returns when there are none left.
func (s *Semaphore) releaseAll() {
	for wait := time.Duration(0); ; time.Sleep(wait) {
		s.mu.Lock()
		all := s.unreleased
		s.unreleased = nil
		s.releasing = len(all) > 0
		s.mu.Unlock()
		if len(all) == 0 {
			return
		}
		failed := s.releaseEach(all)
		if len(failed) == 0 {
			wait = 0
			continue
		}
		wait = min(max(2*wait, firstReleaseWait), lastReleaseWait)
		s.mu.Lock()
		s.unreleased = append(failed, s.unreleased...)
		s.mu.Unlock()
	}
}

// releaseEach releases permits, several at the same time. It returns the permits to be released again.
func (s *Semaphore) releaseEach(all []*Permit) (failed []*Permit) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan *Permit)
	for range min(releasesAtOnce, len(all)) {
		wg.Go(func() {
			for p := range next {
				if p.released.Load() || !time.Now().Before(p.ends) {
					continue
				}
				if _, err := p.release(context.Background()); errors.Is(err, ratelimit.ErrUnavailable) {
					mu.Lock()
					failed = append(failed, p)
					mu.Unlock()
				}
			}
		})
	}
	for _, p := range all {
		next <- p
	}
	close(next)
	wg.Wait()
	return failed
}

// began is the origin of this process's times, so a step of the wall clock has no effect.
var began = time.Now()

// leadOf returns the lead of a server's clock over this process's, in µs since began. It is an
// upper bound, and 0 if not known yet. leadOf returns nil if the key's server is not known.
func (s *Semaphore) leadOf(redisKey string) *atomic.Int64 {
	addr := ""
	if n := s.store.nodes; n != nil {
		if n.cluster != nil && !n.loaded.Load() {
			return nil
		}
		node, err := n.find(redisKey)
		if err != nil {
			return nil
		}
		addr = node.Options().Addr
	} else if _, one := s.store.user.(*redis.Client); !one {
		return nil
	}
	lead, ok := s.leads.Load(addr)
	if !ok {
		lead, _ = s.leads.LoadOrStore(addr, new(atomic.Int64))
	}
	return lead.(*atomic.Int64)
}

// latest returns the server's time in µs by which a caller will have gone, or 0 if it is unknown.
func (s *Semaphore) latest(ctx context.Context, redisKey string, now time.Time) int64 {
	if s.store.timeout < 0 {
		return 0
	}
	lead := s.leadOf(redisKey)
	if lead == nil || lead.Load() == 0 {
		return 0
	}
	end := now.Add(s.store.timeout)
	if own, ok := ctx.Deadline(); ok && own.Add(lingering).Before(end) {
		end = own.Add(lingering)
	}
	return max(0, inMicros(end.Sub(began))+lead.Load())
}

// answered records the server's time of an answer, and passes granted slots to callers of this process. The server read
// its clock after the call was sent. So the difference is an upper bound of the server's lead, and the slots do not end
// before sent + Hold.
func (s *Semaphore) answered(p *Permit, sent time.Time, server int64, granted string) {
	lead := server - inMicros(sent.Sub(began))
	if of := s.leadOf(p.redisKey); of != nil {
		of.Store(lead)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[p.key]; l != nil {
		l.lead = lead
	}
	for ; len(granted) >= attemptSize+7; granted = granted[attemptSize+7:] {
		if w := s.waiterOf(p.key, granted[:attemptSize]); w != nil {
			w.granted, w.token = sent, get7(granted[attemptSize:])
			w.signal()
		}
	}
}

// waiterOf returns an attempt's caller. With Total, a call for one key may serve callers of others.
func (s *Semaphore) waiterOf(key, attempt string) *waiter {
	if l := s.lines[key]; l != nil && l.callers[attempt] != nil {
		return l.callers[attempt]
	}
	if s.total > 0 {
		for _, l := range s.lines {
			if w := l.callers[attempt]; w != nil {
				return w
			}
		}
	}
	return nil
}
