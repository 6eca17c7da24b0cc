package redislimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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
	maxOwner    = 100
	highest     = 2000 // the highest level; its negative is the lowest one
)

// Semaphore limits how many calls or jobs each key has in flight, in a fleet. Make one with
// [NewSemaphore]. It is safe for concurrent use and needs no closing. The zero Semaphore cannot be used.
//
// A key's waiting callers are served first come, first served, as their calls arrive at Redis. The limit is exceeded
// in two cases only: work goes on after its slots have ended, or its slots were lost when Redis failed over.
type Semaphore struct {
	name     string
	store    *store
	scripts  *slotScripts
	space    namespace
	shared   []string // with Total, all keys' common Redis keys
	hold     time.Duration
	total    int64 // 0 if there is no Total
	priority func(key string) int
	owner    string
	limitFor func(key string) int
	lookups  *lookup.Calls[string, int] // calls of limitFor
	logger   *slog.Logger
	limit    atomic.Int64
	process  string        // this Semaphore's id; each Semaphore of a program has its own
	silence  time.Duration // the maximum time without a call; after it the process loses its places in line
	leads    sync.Map      // the lead of each server's clock, by address: string → *atomic.Int64
	warned   atomic.Bool   // the log has the warning about messages

	mu         sync.Mutex // guards the fields below, and their contents
	lines      map[string]*localLine
	groups     map[string]*group // groups of lines and permits, by server
	subs       subscriptions
	unreleased []*Permit // permits to be released again, because a call failed
	releasing  bool      // a goroutine releases them
	held       heldPermits
	apart      bool // a server has refused a call for several keys
}

// SemaphoreOptions configure [NewSemaphore]. Name is required.
type SemaphoreOptions struct {
	// Name is part of the Redis keys and channels. Semaphores with the same
	// Name, Prefix and server share slots. It must not contain braces.
	Name string

	// Prefix begins all Redis keys and channels. It defaults to "ratelimit:". It must not contain braces.
	Prefix string

	// Hold is how long a slot lasts unless it is released or extended. It defaults to 30 s; the minimum
	// is 1 ms. It should be longer than the work: if a slot ends earlier, another caller may begin.
	Hold time.Duration

	// Total is how many slots all keys together may hold, in addition to each key's limit: 1 to 10,000, or 0 for
	// none. Keys with callers waiting for it are served in turn, so a key with hundreds of callers does not delay
	// the others. If a key is at its own limit, its callers hold up no other key. In a cluster all keys are then
	// stored on one server. All processes need the same Total; a semaphore without it counts its slots apart.
	Total int

	// Priority is a key's level when callers wait for Total: freed slots go to the highest level
	// with waiting callers. Levels above 2,000 count as 2,000, and levels below -2,000 as -2,000.
	// If nil, all keys have level 0. It is called when a call begins, from several goroutines.
	Priority func(key string) int

	// Owner identifies this process's permits in [Semaphore.Holders], in
	// at most 100 bytes. It defaults to the names of host and process.
	Owner string

	// LimitFor returns a key's limit, or 0 for the default: NewSemaphore's or SetLimit's. If nil,
	// all keys have the default. It is called from several goroutines, and concurrent calls for a
	// key share its result. If it panics while callers wait, their error reports the panic.
	LimitFor func(key string) int

	// Timeout bounds each call to Redis, as [Options.Timeout] does. It defaults to 50 ms.
	Timeout time.Duration

	// Logger receives one warning if Redis forbids the semaphore's messages, or they do not arrive. It defaults to slog's default
	// logger.
	Logger *slog.Logger
}

// NewSemaphore returns a semaphore that gives each key limit slots, 1 to 10,000. It does not connect.
// The error names the invalid argument, and wraps [ratelimit.ErrInvalidLimit] if it is the limit.
//
// While callers wait, the semaphore keeps one connection and one goroutine for
// each server with their keys. It keeps them for 5 to 10 s after the last caller.
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
		return nil, optional.Nil("redislimit: NewSemaphore: client")
	case o.Name == "":
		return nil, errors.New("redislimit: SemaphoreOptions.Name is empty: it names the slots in Redis")
	case strings.ContainsAny(o.Prefix+o.Name, "{}"):
		return nil, fmt.Errorf("redislimit: SemaphoreOptions.Prefix and Name are %q and %q, want no braces", o.Prefix, o.Name)
	case o.Total < 0 || o.Total > maxSlots:
		return nil, fmt.Errorf("redislimit: %w: %w", ratelimit.ErrInvalidLimit, optional.Within("SemaphoreOptions.Total", o.Total, maxSlots, "none"))
	case len(o.Owner) > maxOwner:
		return nil, fmt.Errorf("redislimit: SemaphoreOptions.Owner has %d bytes, want at most %d", len(o.Owner), maxOwner)
	case o.Hold < time.Millisecond || inMicros(o.Hold) > century:
		return nil, fmt.Errorf("redislimit: SemaphoreOptions.Hold is %v, want 1 ms to 100 years", o.Hold)
	}
	if o.Owner == "" {
		o.Owner = thisProcess()
	}
	s := &Semaphore{name: o.Name, store: newStore(client, o.Timeout, defaultBatch, false, nil), scripts: slotsAlone, hold: o.Hold, total: int64(o.Total), priority: o.Priority,
		owner: o.Owner, limitFor: o.LimitFor, lookups: lookup.New[string, int](0), logger: o.Logger, silence: placeFor + min(max(0, o.Timeout), time.Hour),
		lines: make(map[string]*localLine), groups: make(map[string]*group)}
	s.subs.of = s
	var slot func(string) string
	if o.Total > 0 {
		s.scripts = slotsOfAll
		slot = func(string) string { return "all" }
	}
	s.process = string(put7([]byte(randomBytes(processSize-7)), inMicros(s.silence)))
	var err error
	if s.space, err = newNamespace(o.Prefix, o.Name+"!sem", slot); err != nil {
		return nil, err
	}
	if o.Total > 0 {
		s.shared = []string{s.space.begin + "!sums:{all}", s.space.begin + "!turns:{all}"}
	}
	return s, s.SetLimit(limit)
}

// thisProcess returns the names of host and process.
func thisProcess() string {
	host, _ := os.Hostname()
	if name := fmt.Sprintf("%s %s %d", host, filepath.Base(os.Args[0]), os.Getpid()); len(name) <= maxOwner {
		return name
	}
	return fmt.Sprint("process ", os.Getpid())
}

func randomBytes(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // rand.Read never fails
	return string(b)
}

// SetLimit replaces NewSemaphore's limit, in this process. Permits stay, even above the new limit. An invalid
// limit is refused and changes nothing. A raised limit serves this process's waiting callers at once. Each
// call to Redis applies its own process's limit, so while processes differ the largest limit holds.
func (s *Semaphore) SetLimit(limit int) error {
	s.mustBeMade()
	if limit < 1 || limit > maxSlots {
		return fmt.Errorf("redislimit: %w: the semaphore's limit is %d, want 1 to %d", ratelimit.ErrInvalidLimit, limit, maxSlots)
	}
	if s.limit.Swap(int64(limit)) != int64(limit) {
		s.limitChanged()
	}
	return nil
}

func (s *Semaphore) mustBeMade() {
	if s == nil || s.store == nil {
		panic(optional.Zero("redislimit", "Semaphore", "NewSemaphore"))
	}
}

// limitOf returns the key's limit, or an error if n slots of the key can never be taken.
func (s *Semaphore) limitOf(key string, n int) (int64, error) {
	s.mustBeMade()
	limit := s.limit.Load()
	if own, ok := lookup.Own(s.lookups, key, s.limitFor); ok {
		limit = int64(own)
	}
	switch {
	case n < 1:
		return 0, optional.AtLeastOne("redislimit: the number of slots", n)
	case limit < 1 || limit > maxSlots:
		return 0, fmt.Errorf("redislimit: %w: %w", ratelimit.ErrInvalidLimit, optional.Within("the result of LimitFor", int(limit), maxSlots, "the default"))
	case int64(n) > limit:
		return 0, fmt.Errorf("%w: %d slots are above %d, the semaphore's limit", ratelimit.ErrExceedsLimit, n, limit)
	case s.total > 0 && int64(n) > s.total:
		return 0, fmt.Errorf("%w: %d slots are above %d, the semaphore's Total", ratelimit.ErrExceedsLimit, n, s.total)
	}
	return limit, nil
}

// limitOrPanic is limitOf for one slot, and returns a panic of LimitFor as an error: no caller
// could recover a panic on a goroutine of this package, and slots must still be given back.
func (s *Semaphore) limitOrPanic(key string) (limit int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			limit, err = 0, &limitPanic{failures.PanicText(p)}
		}
	}()
	return s.limitOf(key, 1)
}

// levelOf returns the number of the key's level. The highest level has the lowest number.
func (s *Semaphore) levelOf(key string) int64 {
	if s.priority == nil || s.total == 0 {
		return highest
	}
	return int64(highest - min(max(s.priority(key), -highest), highest))
}

// semaphoreError is an error of a call, with the semaphore's name.
type semaphoreError struct {
	name  string
	cause error
}

func (e *semaphoreError) Unwrap() error { return e.cause }
func (e *semaphoreError) Error() string {
	return fmt.Sprintf("redislimit: semaphore %q: %s", e.name, strings.TrimPrefix(e.cause.Error(), "redislimit: "))
}

// failed returns a call's error for its caller. For a panic of LimitFor the error names the option.
func (s *Semaphore) failed(err error) error {
	if panicked := (*limitPanic)(nil); errors.As(err, &panicked) {
		return err
	}
	return &semaphoreError{s.name, err}
}

// limitPanic is the error of waiting callers when LimitFor panics.
type limitPanic struct{ text string }

func (e *limitPanic) Error() string {
	return "redislimit: SemaphoreOptions.LimitFor panicked with " + e.text
}

// TryAcquire takes n slots of the key, within [SemaphoreOptions.Timeout]. The error wraps [ratelimit.ErrLimited]
// if the slots are not free, or callers wait whose turn is earlier. It wraps [ratelimit.ErrExceedsLimit] if n is
// above the limit or Total. It wraps [ratelimit.ErrUnavailable] if Redis could not decide, and also
// [ratelimit.ErrUnanswered] if the slots may have been taken. Such slots are given back in the background as
// soon as Redis answers, or end after Hold. With an error the permit is nil. Errors name the semaphore.
func (s *Semaphore) TryAcquire(ctx context.Context, key string, n int) (*Permit, error) {
	limit, err := s.limitOf(key, n)
	if err != nil {
		return nil, s.failed(err)
	}
	p := s.permit(key, n)
	if err := p.try(wait.OrBackground(ctx), limit); err != nil {
		return nil, s.failed(err)
	}
	return s.hand(p), nil
}

// Acquire takes n slots of the key once they are free and all processes' earlier callers have been served. When slots
// are granted to a waiting caller, Redis sends its process a message. Every 300 ms the process also polls, once for
// each server and up to 64 keys. It loses its places in line after one second and [SemaphoreOptions.Timeout] without
// a call. Under Total the keys are served in turn, and each key's callers in their order.
//
// Errors are as for TryAcquire, except ErrLimited. If the first call fails, Acquire returns its error at once; a later
// failure ends it only after one second and Timeout without a reply. If the context ends, Acquire gives back its place,
// and any slots already taken, within Timeout. If this fails, the error reports it, and a goroutine tries again.
func (s *Semaphore) Acquire(ctx context.Context, key string, n int) (*Permit, error) {
	ctx = wait.OrBackground(ctx)
	p := s.permit(key, n)
	for late := 1; ; late++ {
		err := p.acquire(ctx)
		switch {
		case err == nil:
			return s.hand(p), nil
		case !errors.Is(err, errLate) || late == maxLate:
			return nil, s.failed(err)
		}
		next := s.permit(key, n)
		next.ticket = p.ticket // its place in line
		p = next
	}
}

// maxLate is the maximum number of attempts of an Acquire whose slots end each time before the answer arrives.
const maxLate = 3

// Reset ends all permits of the key, and all places in line. Waiting callers enter the line again. Work
// goes on without its slots, so until it is done the limit can be exceeded. Errors are as for TryAcquire.
func (s *Semaphore) Reset(ctx context.Context, key string) error {
	limit, err := s.limitOf(key, 1)
	if err == nil {
		_, err = s.run(ctx, &call{script: s.scripts.reset, payload: put7(nil, limit)}, s.space.key(key), s.levelOf(key))
	}
	if err != nil {
		return s.failed(err)
	}
	return nil
}

// run runs a script and returns its reply.
func (s *Semaphore) run(ctx context.Context, c *call, redisKey string, level int64) (string, error) {
	ctx = wait.OrBackground(ctx)
	c.keys, c.test = []string{redisKey}, s.store.testWords()
	if s.total > 0 {
		c.keys = append(c.keys, s.shared...)
		c.payload = append(put7(put7(nil, s.total), level), c.payload...)
	}
	return s.eval(ctx, c)
}

func (s *Semaphore) eval(ctx context.Context, c *call) (string, error) {
	reply, err := s.store.eval(ctx, c)
	if err != nil && strings.Contains(answerOf(err), "WRONGTYPE") {
		return "", fmt.Errorf("%w: a value of another type: %w", errForeignState, err)
	}
	return reply, err
}

// slotScripts are a semaphore's scripts. Only a request for slots needs memory, so Redis may refuse it if memory is short.
type slotScripts struct {
	take, extend, release, beat, look, reset, holders, revoke *script
	beats, extends                                            *script // for several keys
}

var slotsAlone, slotsOfAll = newSlotScripts(), newSlotScripts("slots_total")

func newSlotScripts(total ...string) *slotScripts {
	text := func(op, how string) string {
		return blocks{luaFiles}.lua(slices.Concat([]string{"clock", "slots"}, total, []string{op, how})...)
	}
	alone := func(op string) string { return blocks{luaFiles}.lua("clock", "slots", op, "slots_one") }
	return &slotScripts{
		take:    newScript("", text("slots_take", "slots_one")),
		extend:  newScript(allowOOM, text("slots_extend", "slots_one")),
		release: newScript(allowOOM, text("slots_release", "slots_one")),
		beat:    newScript(allowOOM, text("slots_beat", "slots_one")),
		look:    newScript(noWrites, alone("slots_look")),
		reset:   newScript(allowOOM, text("slots_reset", "slots_one")),
		holders: newScript(noWrites, alone("slots_holders")),
		revoke:  newScript(allowOOM, text("slots_revoke", "slots_one")),
		beats:   newScript(allowOOM, text("slots_beat", "slots_many")),
		extends: newScript(allowOOM, text("slots_extend", "slots_many")),
	}
}
