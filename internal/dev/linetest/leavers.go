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

// Leavers are calls with random costs on several processes, three times as many as the rate
// serves. Each cancels if it was not served after a random time of up to three seconds.
type Leavers struct {
	Rate, Burst, Processes int
	Most                   int           // the largest cost
	Takes                  time.Duration // the duration of each call to the store
	For                    time.Duration // how long served costs count; it begins after five seconds
	Stay                   bool          // no call cancels, and only as many calls wait at a time as the rate needs
	Seed                   uint64
}

func (l Leavers) String() string {
	return fmt.Sprintf("%d a second by %d processes, costs to %d, %v for a call, all stay: %v", l.Rate, l.Processes, l.Most, l.Takes, l.Stay)
}

// Leavers returns the used share of the rate.
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
		all, leave := context.WithCancel(context.Background()) // without a deadline, because a limiter could see one
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
		time.Sleep(2 * time.Second) // until the last bookings were given back
		d, err := fleet[0].Peek(context.Background(), "k", 1)
		assert.NoError(t, err)
		assert.True(t, d.Allowed, "nothing stays booked")
		used = float64(units) / l.For.Seconds() / float64(l.Rate)
	})
	return used
}
