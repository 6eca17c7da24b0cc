package testsize

import (
	"sync/atomic"
	"time"
)

// Running is a clock that runs while this process does: when the process or the machine stops for seconds, that counts as 50 ms.
// By it tests bound how long a call may take.
type Running struct {
	ran  atomic.Int64
	last time.Time
	stop chan struct{}
}

// late is the most that counts of the time between two ticks.
const late = 50 * time.Millisecond

// StartRunning returns a clock that reads 0.
func StartRunning() *Running {
	r := &Running{last: time.Now(), stop: make(chan struct{})}
	go func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				r.tick(time.Now())
			case <-r.stop:
				return
			}
		}
	}()
	return r
}

func (r *Running) tick(now time.Time) {
	r.ran.Add(int64(min(now.Sub(r.last), late)))
	r.last = now
}

// Now returns for how long the process has run, to a few milliseconds.
func (r *Running) Now() time.Duration { return time.Duration(r.ran.Load()) }

// Stop ends the clock's goroutine.
func (r *Running) Stop() { close(r.stop) }
