package inflight_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/wait"
)

// recipe is a document's limiter in front of a backend. In the backend, calls wait first come, first served.
type recipe struct {
	make    func() (*inflight.Limiter[string], error)
	servers int
	keys    int           // how many keys the calls use in turn
	maxWait time.Duration // the middleware's MaxWait, for callers that have no deadline and leave after MaxWait
}

// overloaded describes the calls to a recipe: their load as a part of the capacity, and each call's work and deadline.
type overloaded struct {
	load           float64
	work, deadline time.Duration
}

// play returns the part of the capacity used for calls served in time.
func (r recipe) play(t *testing.T, o overloaded) float64 {
	warm, length := 30*time.Second, testsize.Of(20*time.Second, time.Minute)
	l, err := r.make()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(testsize.Seed(1), 44))
	backend := make(chan struct{}, r.servers)
	start := time.Now()
	var good atomic.Int64
	gap := float64(o.work) / float64(r.servers) / o.load
	for i := 0; time.Since(start) < warm+length; i++ {
		key := strconv.Itoa(i % r.keys)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), o.deadline)
			defer cancel()
			waiting := ctx
			if r.maxWait > 0 {
				var end context.CancelFunc
				waiting, end = wait.Within(context.Background(), r.maxWait)
				defer end()
			}
			p, err := l.Acquire(waiting, key, 1)
			if err != nil {
				return
			}
			backend <- struct{}{}
			time.Sleep(o.work)
			<-backend
			if ctx.Err() != nil {
				p.Done(inflight.Cancelled)
				return
			}
			p.Release()
			if at := time.Since(start); at >= warm && at < warm+length {
				good.Add(int64(o.work))
			}
		}()
		time.Sleep(time.Duration(rng.ExpFloat64() * gap))
	}
	time.Sleep(time.Minute)
	return time.Duration(good.Load()).Seconds() / float64(r.servers) / length.Seconds()
}

// recipes are the limiters in docs/inflight.md, docs/recipes.md, inflight/README.md and the examples.
var recipes = map[string]recipe{
	"Protect":                         {make: protect, servers: 40, keys: 1},
	"Protect, many keys":              {make: protect, servers: 40, keys: 30},
	"Protect, a small backend":        {make: protect, servers: 10, keys: 1},
	"Protect, MaxWait of the request": {make: protect, servers: 40, keys: 4, maxWait: time.Second},
	"a client of one host": {make: func() (*inflight.Limiter[string], error) {
		return inflight.New(20, &options{MaxQueue: 1000})
	}, servers: 20, keys: 1},
	"an adaptive client": {make: func() (*inflight.Limiter[string], error) {
		return inflight.New(1000, &options{Adaptive: inflight.Learn(nil), MaxQueue: 1000})
	}, servers: 40, keys: 1},
	"addresses": {make: func() (*inflight.Limiter[string], error) {
		return inflight.New(10, &options{Total: 100, MaxQueue: 5})
	}, servers: 100, keys: 30},
	"tenants with shares and priorities": {make: func() (*inflight.Limiter[string], error) {
		return inflight.New(200, &options{
			Total: 200, Shared: inflight.Learn(nil), MaxQueue: 50, MaxWaiting: 500,
			Weight:   func(key string) int { return len(key) },
			Priority: func(key string) int { return int(key[0]) % 2 },
		})
	}, servers: 40, keys: 20, maxWait: time.Second},
	"weights": {make: func() (*inflight.Limiter[string], error) {
		return inflight.New(10, &options{Total: 10, MaxQueue: 100, Weight: func(key string) int { return map[string]int{"0": 3}[key] }})
	}, servers: 10, keys: 4},
}

func protect() (*inflight.Limiter[string], error) { return inflight.Protect[string](nil) }

// In an overload, the documents' limiters serve callers still waiting.
func TestTheDocumentsLimitersServeCallersWhoAreStillThere(t *testing.T) {
	testsize.Arithmetic(t)
	cases := []overloaded{
		{1.5, 200 * time.Millisecond, time.Second},
		{1.1, 200 * time.Millisecond, time.Second},
		{1.5, 50 * time.Millisecond, time.Second},
		{1.1, 50 * time.Millisecond, time.Second},
		{1.5, 50 * time.Millisecond, 300 * time.Millisecond},
		{1.5, 200 * time.Millisecond, 3 * time.Second},
		{1.5, 600 * time.Millisecond, time.Second}, // the work takes longer than half the deadline
	}
	for name, r := range recipes {
		for i, o := range cases {
			switch {
			case r.maxWait > 0 && o.deadline != r.maxWait:
				continue
			case !testsize.Long() && (i == 1 || i == 2 || i == 4 || i == 5):
				continue
			case !testsize.Long() && i == 3 && r.servers > 20: // this recipe has many calls
				continue
			}
			least := 0.94
			if o.work > o.deadline/2 {
				if least = 0.8; r.maxWait > 0 { // the limiter cannot see callers leave
					least = 0.7
				}
			}
			t.Run(fmt.Sprintf("%s, load %v, work %v, deadline %v", name, o.load, o.work, o.deadline), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					part := r.play(t, o)
					t.Logf("%.3f of the capacity", part)
					assert.Greater(t, part, least)
				})
			})
		}
	}
}
