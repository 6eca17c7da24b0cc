package redislimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/ctxwait"
	"github.com/weir-go/ratelimit/internal/nilcheck"
)

const (
	defaultHold = 30 * time.Second
	maxSlots    = 10_000 // of a key: a script goes over the slots of a permit
	idLength    = 26     // of a permit's id

	// A caller in line asks at intervals that grow from the first to the last. The next callers to be served ask
	// more often.
	firstAsk = 5 * time.Millisecond
	nextAsk  = 50 * time.Millisecond
	lastAsk  = 250 * time.Millisecond

	// placeFor is how long a place in line lasts without asking, beside a call's timeout.
	placeFor = time.Second
)

// ErrLost says that a [Permit] cannot be extended: its slots have ended.
var ErrLost = errors.New("redislimit: the permit's slots have ended")

// Semaphore caps what is in flight for each key in a fleet. Make one with [NewSemaphore]. It is safe for concurrent use and needs
// no closing. The zero Semaphore cannot be used. Only work that goes on after its slots have ended exceeds the limit, and work
// whose slots a failover of Redis has lost.
type Semaphore struct {
	store    *store
	spaces   [4]namespace
	hold     time.Duration
	limitFor func(key string) int
	limit    atomic.Int64
}

// SemaphoreOptions are the settings of [NewSemaphore]. Name is required.
type SemaphoreOptions struct {
	// Name is a part of the Redis keys. Semaphores of one Name, Prefix and server share slots. It must not contain braces.
	Name string

	// Prefix begins all Redis keys. If empty, "ratelimit:". It must not contain braces.
	Prefix string

	// Hold is how long a slot lasts unless it is released or extended. If zero, 30 s; at least 1 ms.
	Hold time.Duration

	// LimitFor returns the limit of a key; 0 means NewSemaphore's or SetLimit's. If nil, all keys have that one.
	LimitFor func(key string) int

	// Timeout bounds each call, as [Options.Timeout] does. If zero, 50 ms.
	Timeout time.Duration
}

// NewSemaphore returns a semaphore that gives each key limit slots, 1 to 10,000. It does not connect. The error names what is
// wrong, and wraps [ratelimit.ErrInvalidLimit] if that is the limit.
func NewSemaphore(client redis.UniversalClient, limit int, opts *SemaphoreOptions) (*Semaphore, error) {
	var o SemaphoreOptions
	if opts != nil {
		o = *opts
	}
	if o.Hold == 0 {
		o.Hold = defaultHold
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	switch {
	case nilcheck.IsNil(client):
		return nil, errors.New("redislimit: the client is nil")
	case o.Name == "":
		return nil, errors.New("redislimit: SemaphoreOptions.Name is empty: it names the slots in Redis")
	case strings.ContainsAny(o.Prefix+o.Name, "{}"):
		return nil, fmt.Errorf("redislimit: SemaphoreOptions.Prefix and Name are %q and %q, want no braces", o.Prefix, o.Name)
	case o.Hold < time.Millisecond || int64(o.Hold/time.Microsecond) > century:
		return nil, fmt.Errorf("redislimit: SemaphoreOptions.Hold is %v, want 1 ms to 100 years", o.Hold)
	}
	s := &Semaphore{store: newStore(client, o.Timeout, defaultBatch, false, nil), hold: o.Hold, limitFor: o.LimitFor}
	for i, set := range [...]string{"!slots", "!since", "!line", "!places"} {
		var err error
		if s.spaces[i], err = newNamespace(o.Prefix, o.Name+set, nil); err != nil {
			return nil, err
		}
	}
	return s, s.SetLimit(limit)
}

// SetLimit replaces NewSemaphore's limit, in this process. It sends nothing. Permits stay, also above the new limit. An invalid
// limit is refused and changes nothing.
func (s *Semaphore) SetLimit(limit int) error {
	if limit < 1 || limit > maxSlots {
		return fmt.Errorf("redislimit: %w: the semaphore's limit is %d, want 1 to %d", ratelimit.ErrInvalidLimit, limit, maxSlots)
	}
	s.limit.Store(int64(limit))
	return nil
}

// limitOf returns the key's limit, or why n slots of it can never be had.
func (s *Semaphore) limitOf(key string, n int) (int64, error) {
	if s == nil || s.store == nil {
		panic("redislimit: a Semaphore that was not made by NewSemaphore")
	}
	limit := s.limit.Load()
	if s.limitFor != nil {
		if own := s.limitFor(key); own != 0 {
			limit = int64(own)
		}
	}
	switch {
	case n < 1:
		return 0, fmt.Errorf("redislimit: %d slots were asked for, want at least 1", n)
	case limit < 1 || limit > maxSlots:
		return 0, fmt.Errorf("redislimit: %w: LimitFor returned %d, want 0 for the default, or 1 to %d", ratelimit.ErrInvalidLimit, limit, maxSlots)
	case int64(n) > limit:
		return 0, fmt.Errorf("%w: %d slots are above %d, the semaphore's limit", ratelimit.ErrExceedsLimit, n, limit)
	}
	return limit, nil
}

// TryAcquire takes n slots of the key, within [SemaphoreOptions.Timeout]. The error wraps [ratelimit.ErrLimited] if they are not
// free, or earlier callers wait for them; [ratelimit.ErrExceedsLimit] if n is above the limit; [ratelimit.ErrUnavailable] if
// Redis could not decide, and [ratelimit.ErrUnanswered] too if the slots may have been taken, which then end after Hold. With an
// error the permit is nil.
func (s *Semaphore) TryAcquire(ctx context.Context, key string, n int) (*Permit, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	limit, err := s.limitOf(key, n)
	if err != nil {
		return nil, err
	}
	p := s.permit(key, n)
	switch taken, _, err := p.take(ctx, limit, 0); {
	case err != nil:
		return nil, err
	case !taken:
		return nil, fmt.Errorf("%w: %d of the semaphore's %d slots are not free", ratelimit.ErrLimited, n, limit)
	}
	return p, nil
}

// Acquire takes n slots of the key once they are free and earlier callers of all processes have been served. It asks Redis
// every 5 to 250 ms, and loses its place in line after a second and [SemaphoreOptions.Timeout] without asking.
//
// The errors are those of TryAcquire, without ErrLimited. If the first call fails, Acquire returns its error at once; later it
// fails after as long without an answer. If the context ends, Acquire gives back its place and what it may have taken, within
// Timeout. If that fails, the error says so; the place ends after as long, the slots after Hold.
func (s *Semaphore) Acquire(ctx context.Context, key string, n int) (*Permit, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	limit, err := s.limitOf(key, n)
	if err != nil {
		return nil, err
	}
	p := s.permit(key, n)
	patience := placeFor + min(max(0, s.store.timeout), time.Hour) // which cannot overflow
	var answered time.Time                                         // when Redis has answered last
	for interval := firstAsk; ; interval = min(2*interval, lastAsk) {
		taken, needed, err := p.take(ctx, limit, patience)
		switch {
		case taken:
			return p, nil
		case err == nil:
			answered = time.Now()
		case answered.IsZero() && ctx.Err() == nil && !errors.Is(err, ratelimit.ErrUnanswered):
			return nil, err // it has left nothing in Redis
		case ctx.Err() != nil || !errors.Is(err, ratelimit.ErrUnavailable) || time.Since(answered) > patience:
			return nil, p.leave(ctx, err)
		}
		if err == nil && needed <= limit {
			interval = min(interval, nextAsk)
		}
		if err := ctxwait.Sleep(ctx, interval*3/4+mathrand.N(interval/2)); err != nil {
			return nil, p.leave(ctx, ended(err, false))
		}
		if limit, err = s.limitOf(key, n); err != nil {
			return nil, p.leave(ctx, err)
		}
	}
}

// leave gives back the place in line, and slots that may have been taken.
func (p *Permit) leave(ctx context.Context, cause error) error {
	if err := p.Release(ctx); err != nil {
		return errors.Join(cause, fmt.Errorf("redislimit: the place in line was not given back: %w", err))
	}
	return cause
}

// Permit is a number of acquired slots. It is safe for concurrent use.
type Permit struct {
	of       *Semaphore
	keys     []string
	id       string
	n        int
	released atomic.Bool
}

func (s *Semaphore) permit(key string, n int) *Permit {
	p := &Permit{of: s, n: n, id: rand.Text()}
	for i := range s.spaces {
		p.keys = append(p.keys, s.spaces[i].key(key))
	}
	return p
}

// take asks for the slots, and for a place in line if there is patience. It returns how many slots would have to be free.
func (p *Permit) take(ctx context.Context, limit int64, patience time.Duration) (taken bool, needed int64, err error) {
	c := &call{script: slotScripts.take, undone: true}
	reply, err := p.of.ask(ctx, c, p.keys, 1+7, p.id, int64(p.n), limit, inMicros(p.of.hold), inMicros(patience))
	if err != nil {
		return false, 0, err
	}
	return reply[0] == 1, get7(reply[1:]), nil
}

// Extend begins Hold anew. The error is [ErrLost] if the slots have ended or were released; it wraps [ratelimit.ErrUnavailable] if
// Redis did not say; else it is the context's.
func (p *Permit) Extend(ctx context.Context) error {
	if p == nil || p.released.Load() {
		return ErrLost
	}
	reply, err := p.of.ask(ctx, &call{script: slotScripts.extend}, p.keys, 1, p.id, int64(p.n), inMicros(p.of.hold))
	if err == nil && reply[0] == 0 {
		return ErrLost
	}
	return err
}

// Release gives the slots back, also if the context has ended, within [SemaphoreOptions.Timeout]. If it fails, they end after
// Hold. Once it has returned nil, it does nothing; nor does it if the slots have ended, or the permit is nil.
func (p *Permit) Release(ctx context.Context) error {
	if p == nil || p.released.Load() {
		return nil
	}
	if ctx == nil {
		ctx = context.Background()
	}
	_, err := p.of.ask(context.WithoutCancel(ctx), &call{script: slotScripts.release}, p.keys, 1, p.id, int64(p.n))
	if err == nil {
		p.released.Store(true)
	}
	return err
}

// SemaphoreStats says how a key of a [Semaphore] stands in the fleet.
type SemaphoreStats struct {
	InFlight int           // slots that are taken
	Waiting  int           // callers in line
	Oldest   time.Duration // age of the oldest permit; 0 if there is none
}

// Snapshot returns how a key stands. It writes nothing. The errors are those of TryAcquire.
func (s *Semaphore) Snapshot(ctx context.Context, key string) (SemaphoreStats, error) {
	if _, err := s.limitOf(key, 1); err != nil {
		return SemaphoreStats{}, err
	}
	reply, err := s.ask(ctx, &call{script: slotScripts.look}, s.permit(key, 0).keys, 3*7, "")
	if err != nil {
		return SemaphoreStats{}, err
	}
	return SemaphoreStats{int(get7(reply)), int(get7(reply[7:])), between(0, get7(reply[14:]))}, nil
}

// ask runs a script with figures and an id, and returns its answer, of so many bytes.
func (s *Semaphore) ask(ctx context.Context, c *call, keys []string, size int, id string, figures ...int64) (string, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	for _, n := range figures {
		c.payload = put7(c.payload, n)
	}
	c.payload = append(c.payload, id...)
	c.keys, c.test = keys, s.store.testWords()
	reply, err := s.store.eval(ctx, c)
	switch {
	case err != nil && strings.Contains(answerOf(err), "WRONGTYPE"):
		return "", fmt.Errorf("%w: a value of another type: %w", errForeignState, err)
	case err == nil && len(reply) != size:
		return "", errAnswer
	}
	return reply, err
}

func inMicros(d time.Duration) int64 { return int64(d / time.Microsecond) }

// slotScripts are what a semaphore runs.
var slotScripts = func() (s struct{ take, extend, release, look *script }) {
	b := blocks{luaFiles}
	s.take = newScript("", b.lua("clock", "slots", "slots_take"))
	s.extend = newScript(allowOOM, b.lua("clock", "slots", "slots_extend"))
	s.release = newScript(allowOOM, b.lua("clock", "slots", "slots_release"))
	s.look = newScript(noWrites, b.lua("clock", "slots", "slots_look"))
	return s
}()
