package inflight_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// replicas is a backend of 8 servers. Each serves a call in 20 ms.
// Some servers are dead: calls to them are dropped after 1 ms.
type replicas struct {
	servers chan struct{}
	dead    atomic.Int32 // the share of calls to dead servers, in per cent
}

func (b *replicas) call() inflight.Outcome {
	if rand.Int32N(100) < b.dead.Load() {
		time.Sleep(time.Millisecond)
		return inflight.Dropped
	}
	b.servers <- struct{}{}
	defer func() { <-b.servers }()
	time.Sleep(time.Duration(rand.ExpFloat64() * float64(20*time.Millisecond)))
	return inflight.Success
}

// A lower limit does not make a dead replica answer. Each of the runs must show this.
func TestADeadReplicaDoesNotLowerTheLimit(t *testing.T) {
	testsize.Sequential(t)
	for name, adaptive := range map[string]func() inflight.Algorithm{
		"Learn": inflight.Learn(nil), "Learn with Timeout": inflight.Learn(&inflight.LearnOptions{Timeout: 200 * time.Millisecond}),
	} {
		for _, dead := range []int{30, 50} {
			t.Run(fmt.Sprintf("%s, %d %%", name, dead), func(t *testing.T) {
				for run := range testsize.Of(6, 60) {
					synctest.Test(t, func(t *testing.T) {
						rate := rateBesideADeadReplica(adaptive, dead)
						assert.Greater(t, rate, 0.85*float64(8-8*dead/100)*50, "answers a second in run %d", run)
					})
				}
			})
		}
	}
}

// rateBesideADeadReplica counts the good answers a second while a share of the replicas is dead.
func rateBesideADeadReplica(adaptive func() inflight.Algorithm, dead int) float64 {
	backend := &replicas{servers: make(chan struct{}, 8)}
	limiter := ratelimit.Must(inflight.New(400, &inflight.Options[string]{Adaptive: adaptive}))
	var good atomic.Int64
	send := func(d time.Duration) { // 800 calls a second, twice the backend's capacity
		for begin := time.Now(); time.Since(begin) < d; time.Sleep(time.Duration(rand.ExpFloat64() * float64(time.Second/800))) {
			go func() {
				permit, err := limiter.TryAcquire("backend", 1)
				if err != nil {
					return
				}
				outcome := backend.call()
				if outcome == inflight.Success {
					good.Add(1)
				}
				permit.Done(outcome)
			}()
		}
	}
	send(15 * time.Second)
	backend.dead.Store(int32(dead))
	for range 8 * dead / 100 {
		backend.servers <- struct{}{}
	}
	send(5 * time.Second) // the limit finds out that a lower one does not help
	good.Store(0)
	send(10 * time.Second)
	answered := float64(good.Load()) / 10
	time.Sleep(time.Minute) // all calls end
	return answered
}
