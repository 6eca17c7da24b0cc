package ratelimittest_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// Each limiter in this file has one bug found in released limiters. Most are
// the module's limiter with the bug added, so nothing else is wrong with them.

type keyed = *ratelimit.Keyed[string]

type peekConsumes struct{ keyed }

func (l peekConsumes) Peek(key string, cost int) (ratelimit.Decision, error) {
	return l.Take(context.Background(), key, cost)
}

type denialCharges struct{ keyed }

func (l denialCharges) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	d, err := l.keyed.Take(ctx, key, cost)
	if err == nil && !d.Allowed {
		l.Adjust(context.Background(), key, 1)
	}
	return d, err
}

type negativeMints struct{ keyed }

func (l negativeMints) Allow(key string, cost int) bool {
	if cost < 0 {
		return l.Adjust(context.Background(), key, cost) == nil
	}
	return l.keyed.Allow(key, cost)
}

func (l negativeMints) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if cost < 0 {
		l.Adjust(context.Background(), key, cost)
		return l.keyed.Take(ctx, key, 0)
	}
	return l.keyed.Take(ctx, key, cost)
}

// panicsTogether panics, as a map does, if two calls run at once.
type panicsTogether struct {
	keyed
	inside *atomic.Int32
}

func (l panicsTogether) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	defer l.inside.Add(-1)
	if l.inside.Add(1) > 1 {
		panic("panic of two calls")
	}
	runtime.Gosched()
	return l.keyed.Take(ctx, key, cost)
}

// neverSoon returns a denial for a cost that can never pass, instead of an error.
type neverSoon struct{ keyed }

func (l neverSoon) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	d, err := l.keyed.Take(ctx, key, cost)
	if err != nil && cost > 0 {
		return ratelimit.Decision{Limit: d.Limit, Remaining: d.Remaining, RetryAfter: time.Hour}, nil
	}
	return d, err
}

// wholeWindow always returns a whole window's length.
type wholeWindow struct {
	keyed
	limit ratelimit.Limit
}

func (l wholeWindow) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	d, err := l.keyed.Take(ctx, key, cost)
	if d.RetryAfter > 0 {
		d.RetryAfter = l.limit.Rate.Per
	}
	return d, err
}

// roundsDown rounds RetryAfter down to whole milliseconds.
type roundsDown struct{ keyed }

func (l roundsDown) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	d, err := l.keyed.Take(ctx, key, cost)
	d.RetryAfter = d.RetryAfter.Truncate(time.Millisecond)
	return d, err
}

// sharedKey has one bucket for keys that differ only in case.
type sharedKey struct{ keyed }

func (l sharedKey) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.keyed.Take(ctx, strings.ToLower(key), cost)
}

// wipes forgets every other key when a key's budget is spent.
type wipes struct {
	keyed
	seen *sync.Map
}

func (l wipes) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	l.seen.Store(key, true)
	d, err := l.keyed.Take(ctx, key, cost)
	if err == nil && d.Remaining == 0 {
		l.seen.Range(func(other, _ any) bool {
			if other != key {
				l.Reset(context.Background(), other.(string))
			}
			return true
		})
	}
	return d, err
}

// sweepsLive drops spending that still counts.
type sweepsLive struct {
	keyed
	seen *sync.Map
}

func (l sweepsLive) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	l.seen.Store(key, true)
	return l.keyed.Take(ctx, key, cost)
}

func (l sweepsLive) Sweep() int {
	l.seen.Range(func(key, _ any) bool { l.Reset(context.Background(), key.(string)); return true })
	return 0
}

// waitKeeps does not give back a cancelled Wait's booking.
type waitKeeps struct{ keyed }

func (l waitKeeps) Wait(ctx context.Context, key string, cost int) error {
	err := l.keyed.Wait(ctx, key, cost)
	if err != nil && ctx.Err() != nil && cost > 0 {
		l.Adjust(context.Background(), key, cost)
	}
	return err
}

// waitSleeps fails only when the deadline has passed.
type waitSleeps struct{ keyed }

func (l waitSleeps) Wait(ctx context.Context, key string, cost int) error {
	if d, err := l.Peek(context.Background(), key, cost); err == nil && !d.Allowed {
		ctx, stop := context.WithCancel(ctx) // a context without the deadline
		defer stop()
		return fmt.Errorf("waiting: %w", context.Cause(cancelled(ctx)))
	}
	return l.keyed.Wait(ctx, key, cost)
}

func cancelled(ctx context.Context) context.Context {
	ctx, stop := context.WithCancel(ctx)
	stop()
	return ctx
}

// twoReadings reads the clock for the decision, and again for the figures.
type twoReadings struct {
	keyed
	clock *ratelimittest.Clock
}

func (l twoReadings) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	l.clock.Now()
	return l.keyed.Take(ctx, key, cost)
}

// fullRefund gives back the units of a reservation without a delay at any time, even if they no longer count.
type fullRefund struct{ keyed }

func (l fullRefund) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
	if err != nil || r.Delay > 0 {
		return r, err
	}
	return ratelimit.NewReservation(r.Decision, func(actual int) error { return l.Adjust(context.Background(), key, actual-cost) }), err
}

// bookingLeaks does not give back a cancelled reservation.
type bookingLeaks struct{ keyed }

func (l bookingLeaks) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
	return ratelimit.NewReservation(r.Decision, func(int) error { return nil }), err
}

// freshOnChange gives every key a full budget with each new limit.
type freshOnChange struct {
	*sync.Mutex
	make func(ratelimit.Limit) keyed
	now  *keyed
}

func (l freshOnChange) limiter() keyed {
	l.Lock()
	defer l.Unlock()
	return *l.now
}

func (l freshOnChange) Allow(key string, cost int) bool { return l.limiter().Allow(key, cost) }

func (l freshOnChange) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.limiter().Take(ctx, key, cost)
}

func (l freshOnChange) SetLimit(limit ratelimit.Limit) error {
	l.Lock()
	defer l.Unlock()
	*l.now = l.make(limit)
	return nil
}

// newKeysOnly applies a new limit only to new keys.
type newKeysOnly struct{ keyed }

func (l newKeysOnly) SetLimit(ratelimit.Limit) error { return nil }

// floatBucket is a token bucket in floating point, as usually written.
type floatBucket struct {
	*sync.Mutex
	limit ratelimit.Limit
	clock *ratelimittest.Clock
	keys  map[string]*floats
}

type floats struct {
	tokens float64
	last   time.Duration
}

func newFloatBucket(limit ratelimit.Limit, clock *ratelimittest.Clock) floatBucket {
	return floatBucket{new(sync.Mutex), limit, clock, make(map[string]*floats)}
}

func (l floatBucket) rate() float64 { return float64(l.limit.Rate.Units) / float64(l.limit.Rate.Per) }

func (l floatBucket) Allow(key string, cost int) bool {
	d, err := l.Take(context.Background(), key, cost)
	return err == nil && d.Allowed
}

func (l floatBucket) Take(_ context.Context, key string, cost int) (ratelimit.Decision, error) {
	l.Lock()
	defer l.Unlock()
	switch {
	case cost < 0:
		return ratelimit.Decision{}, ratelimit.ErrNegativeCost
	case cost > l.limit.Burst:
		return ratelimit.Decision{}, ratelimit.ErrExceedsLimit
	}
	k := l.refilled(key, l.clock.Now())
	d := ratelimit.Decision{Limit: l.limit, Allowed: float64(cost) <= k.tokens || cost == 0}
	if d.Allowed {
		k.tokens -= float64(cost)
	} else {
		d.RetryAfter = max(1, l.until(k, float64(cost)))
	}
	d.Remaining, d.ResetAfter = int(k.tokens), l.until(k, float64(l.limit.Burst))
	return d, nil
}

func (l floatBucket) until(k *floats, tokens float64) time.Duration {
	return time.Duration(math.Ceil((tokens - k.tokens) / l.rate()))
}

func (l floatBucket) refilled(key string, now time.Duration) *floats {
	k := l.keys[key]
	if k == nil {
		k = &floats{float64(l.limit.Burst), now}
		l.keys[key] = k
	}
	if now > k.last {
		k.tokens = min(float64(l.limit.Burst), k.tokens+float64(now-k.last)*l.rate())
		k.last = now
	}
	return k
}

// overflows multiplies the cost by a unit's time in 64 bits, and ignores overflow.
type overflows struct {
	keyed
	limit ratelimit.Limit
}

func (l overflows) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	interval := int64(l.limit.Rate.Per) / int64(max(1, l.limit.Rate.Units))
	if cost > 0 && int64(cost)*interval < 0 {
		return ratelimit.Decision{Allowed: true, Limit: l.limit}, nil
	}
	return l.keyed.Take(ctx, key, cost)
}

// deadOnArrival denies a key for ever if the time to regain its capacity, in sixteenths of a nanosecond, exceeds 64 bits.
type deadOnArrival struct {
	keyed
	limit ratelimit.Limit
}

func (l deadOnArrival) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	worth := float64(l.limit.Rate.Per) / float64(l.limit.Rate.Units) * float64(l.limit.Capacity())
	if cost > 0 && worth > math.MaxInt64/16 {
		return ratelimit.Decision{Limit: l.limit, RetryAfter: time.Hour}, nil
	}
	return l.keyed.Take(ctx, key, cost)
}

// losesCharges loses a charge made during a sweep.
type losesCharges struct {
	*sync.Mutex
	limit ratelimit.Limit
	keys  map[string]*int
}

func (l losesCharges) Allow(key string, cost int) bool {
	d, err := l.Take(context.Background(), key, cost)
	return err == nil && d.Allowed
}

func (l losesCharges) find(key string) *int {
	l.Lock()
	defer l.Unlock()
	if l.keys[key] == nil {
		l.keys[key] = new(int)
	}
	return l.keys[key]
}

func (l losesCharges) Take(_ context.Context, key string, cost int) (ratelimit.Decision, error) {
	spent := l.find(key)
	runtime.Gosched() // the sweep runs here
	l.Lock()
	defer l.Unlock()
	d := ratelimit.Decision{Limit: l.limit, Allowed: *spent+cost <= l.limit.Capacity()}
	if d.Allowed {
		*spent += cost
	}
	d.Remaining = l.limit.Capacity() - *spent
	if !d.Allowed {
		d.RetryAfter = l.limit.Rate.Per
	}
	return d, nil
}

func (l losesCharges) Sweep() int {
	l.Lock()
	defer l.Unlock()
	clear(l.keys)
	return 0
}

// forgetsUnderFlood forgets the oldest key to make room, even if it is throttled.
type forgetsUnderFlood struct {
	keyed
	*sync.Mutex
	order *[]string
	most  int
}

func (l forgetsUnderFlood) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	l.Lock()
	defer l.Unlock()
	if !slices.Contains(*l.order, key) {
		*l.order = append(*l.order, key)
	}
	if len(*l.order) > l.most {
		l.Reset(context.Background(), (*l.order)[0])
		*l.order = (*l.order)[1:]
	}
	return l.keyed.Take(ctx, key, cost)
}

// wrong is the config of a limiter with a bug, and the failure to be reported by the suite.
type wrong struct {
	wide  bool // the bug needs ints of 64 bits
	name  string
	build func(limit ratelimit.Limit, clock *ratelimittest.Clock) ratelimit.Limiter[string]
	// replaces build if the bug is in New
	newly     func(limit ratelimit.Limit, clock *ratelimittest.Clock) (ratelimit.Limiter[string], error)
	accepts   func(limit ratelimit.Limit) bool
	promise   string // the broken promise
	text      string // a part of the failure's text
	histories int    // 0 means 16
}

func put(bug func(k keyed, limit ratelimit.Limit, clock *ratelimittest.Clock) ratelimit.Limiter[string]) func(ratelimit.Limit, *ratelimittest.Clock) ratelimit.Limiter[string] {
	return func(limit ratelimit.Limit, clock *ratelimittest.Clock) ratelimit.Limiter[string] {
		return bug(good(limit, clock), limit, clock)
	}
}

func good(limit ratelimit.Limit, clock *ratelimittest.Clock) keyed {
	return ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
}

type limiter = ratelimit.Limiter[string]

var wrongs = []wrong{
	{name: "a peek consumes", promise: "promise 4", text: "Peek answers",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return peekConsumes{k} })},
	{name: "a denial is charged", promise: "promise 4", text: "was denied before",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return denialCharges{k} })},
	{name: "a negative cost mints", promise: "promise 4", text: "cost -1: the error is <nil>",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return negativeMints{k} })},
	{name: "a cost above the capacity is to be retried", promise: "promise 4", text: `want "ratelimit: cost exceeds the limit"`,
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return neverSoon{k} })},
	{name: "RetryAfter is always the window", promise: "promise 1", text: "RetryAfter was",
		build: put(func(k keyed, l ratelimit.Limit, _ *ratelimittest.Clock) limiter { return wholeWindow{k, l} })},
	{name: "RetryAfter rounds down", promise: "promise 1", text: "RetryAfter 0s",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return roundsDown{k} })},
	{name: "keys share a bucket", promise: "each key has a budget of its own", text: "a key never seen answers",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return sharedKey{k} })},
	{name: "one key's denial wipes the others", promise: "each key has a budget of its own", text: "other keys have spent",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return wipes{k, new(sync.Map)} })},
	{name: "a sweep frees live quota", promise: "the promise of Sweep", text: "after a sweep",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return sweepsLive{k, new(sync.Map)} })},
	{name: "a charge that meets a sweep is lost", promise: "promise 5", text: "were spent at once",
		build: func(l ratelimit.Limit, _ *ratelimittest.Clock) limiter {
			return losesCharges{new(sync.Mutex), l, make(map[string]*int)}
		}},
	{name: "two calls at once are a panic", promise: "no call panics", text: "panic of two calls",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter {
			return panicsTogether{k, new(atomic.Int32)}
		})},
	{name: "a cancelled wait keeps its permits", promise: "the promise of Wait", text: "until its context was cancelled",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return waitKeeps{k} })},
	{name: "a wait does not look at its deadline", promise: "the promise of Wait", text: "the deadline comes first",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return waitSleeps{k} })},
	{name: "the clock is read twice", promise: "promise 7", text: "Take reads the clock 2 times",
		build: put(func(k keyed, _ ratelimit.Limit, c *ratelimittest.Clock) limiter { return twoReadings{k, c} })},
	{name: "a settlement gives back what was regained", promise: "the promise of Settle", text: "had been regained long ago",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return fullRefund{k} })},
	{name: "a cancelled booking stays", promise: "the promise of Settle", text: "cancelled before its time",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return bookingLeaks{k} })},
	{name: "a new limit is a full bucket for everyone", promise: "the promise of SetLimit", text: "were spent, the capacity is",
		build: func(l ratelimit.Limit, c *ratelimittest.Clock) limiter {
			now := good(l, c)
			return freshOnChange{new(sync.Mutex), func(l ratelimit.Limit) keyed { return good(l, c) }, &now}
		}},
	{name: "a new limit never reaches existing keys", promise: "the promise of SetLimit", text: "the key answers for",
		build: put(func(k keyed, _ ratelimit.Limit, _ *ratelimittest.Clock) limiter { return newKeysOnly{k} })},
	{name: "tokens are floats", promise: "promise", text: "is broken by token-bucket", accepts: tokenBuckets, histories: 200,
		build: func(l ratelimit.Limit, c *ratelimittest.Clock) limiter { return newFloatBucket(l, c) }},
	{name: "state follows the clock back", promise: "promise 7", text: "the clock was", accepts: fitsWords,
		build: func(l ratelimit.Limit, c *ratelimittest.Clock) limiter {
			b := newWordBucket(l, 1, c.Now)
			b.followsBack = true
			return b
		}},
	{name: "a product overflows", promise: "promise 4", text: `the error is <nil>, want "ratelimit: cost exceeds the limit"`,
		build: put(func(k keyed, l ratelimit.Limit, _ *ratelimittest.Clock) limiter { return overflows{k, l} })},
	{name: "a fresh key is denied for ever", promise: "promise 6", text: "fits and is not allowed", accepts: only(token, fixed, log),
		build: put(func(k keyed, l ratelimit.Limit, _ *ratelimittest.Clock) limiter { return deadOnArrival{k, l} })},
}

func tokenBuckets(l ratelimit.Limit) bool { return l.Algorithm == ratelimit.AlgorithmTokenBucket }

func TestWrongLimitersAreFoundOut(t *testing.T) {
	testsize.Arithmetic(t)
	testsize.Extra(t)
	findAll(t, wrongs)
}

// isFoundIn reports whether one of Check's errors contains both the promise and the text.
func (w wrong) isFoundIn(err error) bool {
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		first, _, _ := strings.Cut(e.Error(), " is broken by ")
		if strings.Contains(first, w.promise) && strings.Contains(e.Error(), w.text) {
			return true
		}
	}
	return false
}

// Without an added bug, the limiter passes the suite.
func TestWithoutABugNothingIsFound(t *testing.T) {
	clock := new(ratelimittest.Clock)
	assert.NoError(t, ratelimittest.Check(ratelimittest.Config{
		Clock: clock,
		New: func(l ratelimit.Limit) (ratelimit.Limiter[string], error) {
			return ratelimit.New(l, &ratelimit.Options[string]{Clock: clock})
		},
	}))
}
