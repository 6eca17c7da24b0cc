package testsize

import (
	"sync/atomic"
	"time"
)

// Running is a clock that advances while this process runs. If the process or the machine
// stops for seconds, the stop counts as 50 ms. Tests use it to bound a call's duration.
type Running struct {
	ran  atomic.Int64
	last time.Time
	stop chan struct{}
}

// late is the maximum time that counts between two ticks.
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

// Now returns how long the process has run, to within some milliseconds.
func (r *Running) Now() time.Duration { return time.Duration(r.ran.Load()) }

// Stop ends the clock's goroutine.
func (r *Running) Stop() { close(r.stop) }
