package benchmarks

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/didip/tollbooth/v8"
	"github.com/didip/tollbooth/v8/limiter"
	"github.com/go-chi/httprate"
	juju "github.com/juju/ratelimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/weir-go/ratelimit"
)

// setup is what a workload requires of a limiter.
type setup struct {
	shut bool // the limit is one unit an hour, so that a key is exhausted at once; otherwise the limit is never reached
	keys int  // how many keys it must hold
}

// perSecond is a rate never reached, and its burst.
const perSecond = 1_000_000_000

// figures returns a limit: units per period, and the burst.
func (s setup) figures() (units int, per time.Duration) {
	if s.shut {
		return 1, time.Hour
	}
	return perSecond, time.Second
}

// subject is a limiter under measurement. Each method is one decision of cost 1.
type subject struct {
	allow func(key string) bool
	close func() // stops background work; nil if there is none
}

// peer is a limiter in its usual form.
type peer struct {
	name    string
	new     func(setup) subject
	bounded bool // whether it never keeps more keys than setup has
}

var peers = []peer{
	{"ratelimit", newAllow, true},
	{"ratelimit-Take", newTake, true},
	{"xtime-map+Mutex", newTimeMap, false},
	{"xtime-sync.Map", newTimeSyncMap, false},
	{"juju-map+Mutex", newJuju, false},
	{"sethvargo", newSethvargo, false},
	{"throttled-map", newThrottledMap, false},
	{"throttled-LRU", newThrottledLRU, true},
	{"ulule", newUlule, false},
	{"httprate-counter", newHTTPRate, false},
	{"tollbooth", newTollbooth, false},
	{"floor", newFloor, false},
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newOurs(s setup) *ratelimit.Keyed[string] {
	units, per := s.figures()
	limit := ratelimit.TokenBucket(ratelimit.Per(units, per), units)
	return ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{MaxKeys: s.keys}))
}

func newAllow(s setup) subject {
	l := newOurs(s)
	return subject{allow: func(key string) bool { return l.Allow(key, 1) }}
}

func newTake(s setup) subject {
	l, ctx := newOurs(s), context.Background()
	return subject{allow: func(key string) bool {
		d, err := l.Take(ctx, key, 1)
		return err == nil && d.Allowed
	}}
}

// newTimeMap is the usual hand-written limiter: a map of golang.org/x/time/rate limiters under a mutex.
func newTimeMap(s setup) subject {
	units, per := s.figures()
	var mu sync.Mutex
	limiters := make(map[string]*rate.Limiter)
	return subject{allow: func(key string) bool {
		mu.Lock()
		l := limiters[key]
		if l == nil {
			l = rate.NewLimiter(rate.Every(per)*rate.Limit(units), units)
			limiters[key] = l
		}
		mu.Unlock()
		return l.Allow()
	}}
}

func newTimeSyncMap(s setup) subject {
	units, per := s.figures()
	var limiters sync.Map
	return subject{allow: func(key string) bool {
		l, ok := limiters.Load(key)
		if !ok {
			l, _ = limiters.LoadOrStore(key, rate.NewLimiter(rate.Every(per)*rate.Limit(units), units))
		}
		return l.(*rate.Limiter).Allow()
	}}
}

func newJuju(s setup) subject {
	units, per := s.figures()
	var mu sync.Mutex
	buckets := make(map[string]*juju.Bucket)
	return subject{allow: func(key string) bool {
		mu.Lock()
		b := buckets[key]
		if b == nil {
			b = juju.NewBucketWithQuantum(per, int64(units), int64(units))
			buckets[key] = b
		}
		mu.Unlock()
		return b.TakeAvailable(1) == 1
	}}
}

func newSethvargo(s setup) subject {
	units, per := s.figures()
	ctx := context.Background()
	store := must(memorystore.New(&memorystore.Config{Tokens: uint64(units), Interval: per}))
	return subject{
		allow: func(key string) bool {
			_, _, _, ok, err := store.Take(ctx, key)
			return err == nil && ok
		},
		close: func() { _ = store.Close(ctx) },
	}
}

func newThrottledMap(s setup) subject { return newThrottled(s, 0) }

func newThrottledLRU(s setup) subject { return newThrottled(s, s.keys) }

func newThrottled(s setup, maxKeys int) subject {
	units, per := s.figures()
	ctx := context.Background()
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(units, per), MaxBurst: units - 1}
	l := must(throttled.NewGCRARateLimiterCtx(must(memstore.NewCtx(maxKeys)), quota))
	return subject{allow: func(key string) bool {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return err == nil && !limited
	}}
}

func newUlule(s setup) subject {
	units, per := s.figures()
	ctx := context.Background()
	l := ulule.New(memory.NewStore(), ulule.Rate{Period: per, Limit: int64(units)})
	return subject{allow: func(key string) bool {
		c, err := l.Get(ctx, key)
		return err == nil && !c.Reached
	}}
}

// newHTTPRate uses httprate's counter as its middleware does, without header fields.
// The counter keeps only a hash of each key, so two keys may share a budget.
func newHTTPRate(s setup) subject {
	units, per := s.figures()
	counter := httprate.NewLocalLimitCounter(per)
	counter.Config(units, per)
	var mu sync.Mutex
	return subject{allow: func(key string) bool {
		now := time.Now().UTC()
		window := now.Truncate(per)
		mu.Lock()
		defer mu.Unlock()
		curr, prev, err := counter.Get(key, window, window.Add(-per))
		used := float64(prev)*float64(per-now.Sub(window))/float64(per) + float64(curr)
		if err != nil || int(math.Round(used))+1 > units {
			return false
		}
		return counter.IncrementBy(key, window, 1) == nil
	}}
}

func newTollbooth(s setup) subject {
	units, per := s.figures()
	l := tollbooth.NewLimiter(float64(units)/per.Seconds(), &limiter.ExpirableOptions{DefaultExpirationTTL: time.Hour})
	l.SetBurst(units)
	return subject{allow: func(key string) bool { return !l.LimitReached(key) }}
}

// cell is a key's state in the floor.
type cell struct {
	mu sync.Mutex
	at int64 // when all spending is regained
}

var floorOrigin = time.Now()

// newFloor returns the minimum work of an exact limiter with one budget per key, written inline. It
// hashes the key, finds its cell in an unguarded map, takes an uncontended lock, reads the clock once,
// and computes one token bucket. It does not bound the number of keys, and inserts none during decisions.
func newFloor(s setup) subject {
	units, per := s.figures()
	price, full := int64(per)/int64(units), int64(per)
	cells := make(map[string]*cell)
	for i := range 16 { // a map of up to eight keys would not hash them
		cells[fmt.Sprint("other:", i)] = new(cell)
	}
	return subject{allow: func(key string) bool {
		c := cells[key]
		if c == nil {
			c = new(cell)
			cells[key] = c
		}
		c.mu.Lock()
		now := int64(time.Since(floorOrigin))
		at := max(c.at, now) + price
		ok := at-now <= full
		if ok {
			c.at = at
		}
		c.mu.Unlock()
		return ok
	}}
}
