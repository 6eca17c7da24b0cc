package redislimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
	"github.com/weir-go/ratelimit/internal/lookup"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
)

const (
	defaultHold = 30 * time.Second
	maxSlots    = 10_000
)

// Semaphore limits the number of calls or jobs in flight for each key, in a fleet. Make one with [NewSemaphore]. It is safe for
// concurrent use and needs no closing. The zero Semaphore cannot be used.
//
// Waiting callers are served first come, first served, in the order in which their calls arrive at Redis. The limit is exceeded only
// by work that goes on after its slots have ended, and by work whose slots a failover of Redis has lost.
type Semaphore struct {
	store    *store
	space    namespace
	hold     time.Duration
	limitFor func(key string) int
	asked    *lookup.Calls[string, int] // of limitFor
	logger   *slog.Logger
	limit    atomic.Int64
	process  string        // the id of this Semaphore, which differs from others of the same program too
	silence  time.Duration // the longest time without a call, after which it loses its places in line
	leads    sync.Map      // the lead of each server's clock, by address: string → *atomic.Int64
	warned   atomic.Bool   // the log has the warning about messages

	mu         sync.Mutex // guards the fields below, and all in them
	lines      map[string]*localLine
	subs       subscriptions
	unreleased []*Permit // permits to be released again, because a call failed
	releasing  bool      // a goroutine releases them
}

// SemaphoreOptions are the settings of [NewSemaphore]. Name is required.
type SemaphoreOptions struct {
	// Name is a part of the Redis keys and of the channels. Semaphores with the same Name, Prefix and server share slots. It must
	// not contain braces.
	Name string

	// Prefix begins all Redis keys and channels. It defaults to "ratelimit:". It must not contain braces.
	Prefix string

	// Hold is the time after which a slot ends unless it is released or extended. It defaults to 30 s; the minimum is 1 ms.
	// It should be longer than the work: a slot that ends earlier lets another caller begin.
	Hold time.Duration

	// LimitFor returns the limit of a key, or 0 for the default, which is NewSemaphore's or SetLimit's. If nil, all keys have the
	// default. It is called from several goroutines, and concurrent calls for a key share its result. If it panics while callers wait,
	// their error says so.
	LimitFor func(key string) int

	// Timeout is the maximum duration of each call to Redis, as [Options.Timeout] is. It defaults to 50 ms.
	Timeout time.Duration

	// Logger receives one warning if Redis forbids the semaphore's messages, or they do not arrive. It defaults to slog's default
	// logger.
	Logger *slog.Logger
}

// NewSemaphore returns a semaphore that gives each key limit slots, 1 to 10,000. It does not connect. The error names the invalid
// argument, and wraps [ratelimit.ErrInvalidLimit] if that is the limit.
//
// While callers wait, the semaphore keeps one connection and one goroutine for each server that has their keys, and until 5 to 10 s after the last of them.
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
	case optional.IsNil(client):
		return nil, errors.New("redislimit: the client is nil")
	case o.Name == "":
		return nil, errors.New("redislimit: SemaphoreOptions.Name is empty: it names the slots in Redis")
	case strings.ContainsAny(o.Prefix+o.Name, "{}"):
		return nil, fmt.Errorf("redislimit: SemaphoreOptions.Prefix and Name are %q and %q, want no braces", o.Prefix, o.Name)
	case o.Hold < time.Millisecond || inMicros(o.Hold) > century:
		return nil, fmt.Errorf("redislimit: SemaphoreOptions.Hold is %v, want 1 ms to 100 years", o.Hold)
	}
	s := &Semaphore{store: newStore(client, o.Timeout, defaultBatch, false, nil), hold: o.Hold, limitFor: o.LimitFor, asked: lookup.New[string, int](0), logger: o.Logger,
		silence: placeFor + min(max(0, o.Timeout), time.Hour), lines: make(map[string]*localLine)}
	s.subs.of = s
	s.process = string(put7([]byte(randomBytes(processSize-7)), inMicros(s.silence)))
	var err error
	if s.space, err = newNamespace(o.Prefix, o.Name+"!sem", nil); err != nil {
		return nil, err
	}
	return s, s.SetLimit(limit)
}

func randomBytes(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // which never fails
	return string(b)
}

// SetLimit replaces NewSemaphore's limit, in this process. Permits stay, even above the new limit. An invalid limit is refused and
// changes nothing. A raised limit serves this process's waiting callers at once. Each call to Redis applies the limit of its own
// process, so while processes differ the largest limit holds.
func (s *Semaphore) SetLimit(limit int) error {
	if limit < 1 || limit > maxSlots {
		return fmt.Errorf("redislimit: %w: the semaphore's limit is %d, want 1 to %d", ratelimit.ErrInvalidLimit, limit, maxSlots)
	}
	if s.limit.Swap(int64(limit)) != int64(limit) {
		s.limitChanged()
	}
	return nil
}

// limitOf returns the key's limit, or an error if n slots of it can never be taken.
func (s *Semaphore) limitOf(key string, n int) (int64, error) {
	if s == nil || s.store == nil {
		panic("redislimit: a Semaphore that was not made by NewSemaphore")
	}
	limit := s.limit.Load()
	if s.limitFor != nil {
		if own := lookup.One(s.asked, key, s.limitFor); own != 0 {
			limit = int64(own)
		}
	}
	switch {
	case n < 1:
		return 0, fmt.Errorf("redislimit: the number of slots is %d, want at least 1", n)
	case limit < 1 || limit > maxSlots:
		return 0, fmt.Errorf("redislimit: %w: LimitFor returned %d, want 0 for the default, or 1 to %d", ratelimit.ErrInvalidLimit, limit, maxSlots)
	case int64(n) > limit:
		return 0, fmt.Errorf("%w: %d slots are above %d, the semaphore's limit", ratelimit.ErrExceedsLimit, n, limit)
	}
	return limit, nil
}

// limitOrPanic is limitOf for one slot, where a panic of LimitFor is an error: on a goroutine of this package no caller could recover
// it, and slots are given back all the same.
func (s *Semaphore) limitOrPanic(key string) (limit int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			limit, err = 0, &limitPanic{failures.PanicText(p)}
		}
	}()
	return s.limitOf(key, 1)
}

// limitPanic is the error of the callers that wait while LimitFor panics.
type limitPanic struct{ text string }

func (e *limitPanic) Error() string {
	return "redislimit: SemaphoreOptions.LimitFor panicked with " + e.text
}

// TryAcquire takes n slots of the key, within [SemaphoreOptions.Timeout]. The error wraps [ratelimit.ErrLimited] if they are not
// free, or earlier callers wait for them; [ratelimit.ErrExceedsLimit] if n is above the limit; [ratelimit.ErrUnavailable] if
// Redis could not decide, and also [ratelimit.ErrUnanswered] if the slots may have been taken. Such slots are given back in the
// background as soon as Redis answers, or end after Hold. With an error the permit is nil.
func (s *Semaphore) TryAcquire(ctx context.Context, key string, n int) (*Permit, error) {
	ctx = wait.OrBackground(ctx)
	limit, err := s.limitOf(key, n)
	if err != nil {
		return nil, err
	}
	p := s.permit(key, n)
	switch state, err := p.take(ctx, limit, howTry); {
	case err != nil:
		if p.unanswered.Load() {
			s.releaseLater(p)
		}
		return nil, err
	case state != slotsTaken:
		return nil, fmt.Errorf("%w: %d of the semaphore's %d slots are not free", ratelimit.ErrLimited, n, limit)
	}
	if err := p.inTime(); err != nil {
		return nil, err
	}
	return p, nil
}

// Acquire takes n slots of the key once they are free and earlier callers of all processes have been served. When slots are
// granted to a waiting caller, Redis sends its process a message. Every 300 ms the process also polls, once for all of its
// callers that wait for the key. It loses its places in line after one second and [SemaphoreOptions.Timeout] without a call.
//
// Errors are as for TryAcquire, except ErrLimited. If the first call fails, Acquire returns its error at once; later it fails
// after one second and Timeout without a reply. If the context ends, Acquire gives back its place and the slots that it may
// have taken, within Timeout. If that fails, the error says so, and it is tried again in the background.
func (s *Semaphore) Acquire(ctx context.Context, key string, n int) (*Permit, error) {
	ctx = wait.OrBackground(ctx)
	p := s.permit(key, n)
	for late := 1; ; late++ {
		err := p.acquire(ctx)
		switch {
		case err == nil:
			return p, nil
		case !errors.Is(err, errLate) || late == maxLate:
			return nil, err
		}
		next := s.permit(key, n)
		next.ticket = p.ticket // its place in line
		p = next
	}
}

// maxLate is the number of attempts of an Acquire, if each time the slots have ended before the answer arrives.
const maxLate = 3

// Reset ends all permits of the key, and all places in line. Callers that wait enter the line again. Work that has lost its
// slots goes on, so until it is done the limit can be exceeded. Errors are as for TryAcquire.
func (s *Semaphore) Reset(ctx context.Context, key string) error {
	if _, err := s.limitOf(key, 1); err != nil {
		return err
	}
	_, err := s.ask(ctx, &call{script: slotScripts.reset}, s.space.key(key))
	return err
}

// SemaphoreStats is the state of a key of a [Semaphore] in the fleet.
type SemaphoreStats struct {
	InFlight int           // the number of slots in use
	Waiting  int           // the number of callers in line
	Oldest   time.Duration // the age of the oldest permit; 0 if there is none
}

// Snapshot returns the state of a key. It writes nothing, and takes time in proportion to the number of permits and waiting
// callers. Errors are as for TryAcquire.
func (s *Semaphore) Snapshot(ctx context.Context, key string) (SemaphoreStats, error) {
	if _, err := s.limitOf(key, 1); err != nil {
		return SemaphoreStats{}, err
	}
	reply, err := s.ask(ctx, &call{script: slotScripts.look}, s.space.key(key))
	if err == nil && len(reply) != 3*7 {
		err = errAnswer
	}
	if err != nil {
		return SemaphoreStats{}, err
	}
	return SemaphoreStats{int(get7(reply)), int(get7(reply[7:])), between(0, get7(reply[14:]))}, nil
}

// ask runs a script and returns its reply.
func (s *Semaphore) ask(ctx context.Context, c *call, redisKey string) (string, error) {
	ctx = wait.OrBackground(ctx)
	c.keys, c.test = []string{redisKey}, s.store.testWords()
	reply, err := s.store.eval(ctx, c)
	if err != nil && strings.Contains(answerOf(err), "WRONGTYPE") {
		return "", fmt.Errorf("%w: a value of another type: %w", errForeignState, err)
	}
	return reply, err
}

func inMicros(d time.Duration) int64 { return int64(d / time.Microsecond) }

// slotScripts are the scripts of a semaphore. Only a request for slots needs memory that Redis may not have.
var slotScripts = func() (s struct{ take, extend, release, beat, look, reset *script }) {
	b := blocks{luaFiles}
	text := func(last string) string { return b.lua("clock", "slots", last) }
	s.take = newScript("", text("slots_take"))
	s.extend = newScript(allowOOM, text("slots_extend"))
	s.release = newScript(allowOOM, text("slots_release"))
	s.beat = newScript(allowOOM, text("slots_beat"))
	s.look = newScript(noWrites, text("slots_look"))
	s.reset = newScript(allowOOM, text("slots_reset"))
	return s
}()
