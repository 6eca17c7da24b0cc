package linetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
)

// Leavers is calls of random costs that come to several processes, three times as many as the rate serves. Each hangs up after up to three
// seconds if it is not served by then.
type Leavers struct {
	Rate, Burst, Processes int
	Most                   int           // the largest cost
	Takes                  time.Duration // each call of the store
	For                    time.Duration // for which served costs count, after five seconds
	Stay                   bool          // nobody hangs up: as many calls as the rate needs come again and again
	Seed                   uint64
}

func (l Leavers) String() string {
	return fmt.Sprintf("%d a second by %d processes, costs to %d, %v for a call, all stay: %v", l.Rate, l.Processes, l.Most, l.Takes, l.Stay)
}

// Leavers returns the part of the rate that is used.
func (s Bubble) Leavers(t *testing.T, l Leavers) (used float64) {
	synctest.Test(t, func(t *testing.T) {
		process, rng := s.Open(t, l.Takes), rand.New(rand.NewPCG(l.Seed, 68))
		var fleet []Process
		for range l.Processes {
			fleet = append(fleet, process(ratelimit.TokenBucket(ratelimit.PerSecond(l.Rate), l.Burst)))
		}
		begin := time.Now().Add(5 * time.Second)
		end := begin.Add(l.For)
		var mu sync.Mutex
		var wg sync.WaitGroup
		units := 0
		all, leave := context.WithCancel(context.Background()) // without a deadline, of which a limiter would know
		time.AfterFunc(time.Until(end), leave)
		call := func(p Process, cost int, patience time.Duration) {
			ctx, hangUp := context.WithCancel(all)
			defer hangUp()
			defer time.AfterFunc(patience, hangUp).Stop()
			if p.Wait(ctx, "k", cost) != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if now := time.Now(); !now.Before(begin) && now.Before(end) {
				units += cost
			}
		}
		for _, p := range fleet {
			for range max(4, 4*l.Rate/l.Processes/l.Most) {
				if !l.Stay {
					break
				}
				rng := rand.New(rand.NewPCG(rng.Uint64(), 68))
				wg.Go(func() {
					for all.Err() == nil {
						call(p, 1+rng.IntN(l.Most), l.For+time.Minute)
					}
				})
			}
		}
		for all.Err() == nil {
			if l.Stay {
				<-all.Done()
				break
			}
			p, cost, patience := fleet[rng.IntN(l.Processes)], 1+rng.IntN(l.Most), time.Duration(1+rng.Int64N(int64(3*time.Second)))
			wg.Go(func() { call(p, cost, patience) })
			time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Second) / float64(l.Rate) / 3 * float64(1+l.Most) / 2))
		}
		leave()
		wg.Wait()
		time.Sleep(2 * time.Second) // in which the last bookings are given back
		d, err := fleet[0].Peek(context.Background(), "k", 1)
		assert.NoError(t, err)
		assert.True(t, d.Allowed, "nothing stays booked")
		used = float64(units) / l.For.Seconds() / float64(l.Rate)
	})
	return used
}
