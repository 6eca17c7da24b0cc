// Soak runs limiters with five algorithms under load for a given time, with floods of
// invented keys, sweeps, changes of the limit and a clock that steps. Meanwhile it checks:
//
//   - No watched key is ever allowed more than its bound, over any interval between checks.
//   - RetryAfter is true to the nanosecond, in every state of a key.
//   - No more keys are tracked than MaxKeys.
//   - The heap and the number of goroutines stay flat.
//
// It prints its progress, and exits with status 1 if anything was violated:
//
//	go run ./cmd/soak -for 8h
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"time"

	"github.com/weir-go/ratelimit"
)

// limits has one limit per algorithm.
var limits = []ratelimit.Limit{
	ratelimit.TokenBucket(ratelimit.PerSecond(30), 20),
	ratelimit.LeakyBucket(ratelimit.PerSecond(30), 20),
	ratelimit.FixedWindow(ratelimit.PerSecond(20)),
	ratelimit.SlidingLog(ratelimit.PerSecond(20)),
	ratelimit.SlidingCounter(ratelimit.PerSecond(20)),
}

func main() {
	lasts := flag.Duration("for", 10*time.Second, "how long to hammer, all algorithms together")
	keys := flag.Uint64("keys", 4_000_000, "how many keys the floods invent")
	maxKeys := flag.Int("max", 1<<18, "Options.MaxKeys of each limiter")
	workers := flag.Int("workers", 2*runtime.GOMAXPROCS(0), "how many goroutines spend")
	every := flag.Duration("every", time.Second, "how long between two checks")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s := setup{lasts: *lasts / time.Duration(len(limits)), keys: *keys, maxKeys: *maxKeys, workers: *workers,
		every: *every, calm: 2000, out: os.Stdout, make: ours}
	if err := soak(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	fmt.Println("nothing was violated")
}

func ours(limit ratelimit.Limit, opts *ratelimit.Options[uint64]) (limiter, error) {
	return ratelimit.New(limit, opts)
}

// soak runs one stage per algorithm. A stage releases its memory at the end.
func soak(ctx context.Context, s setup) error {
	if err := s.validate(); err != nil {
		return err
	}
	before := gauge{goroutines: runtime.NumGoroutine(), heap: heapInUse()}
	for _, s.limit = range limits {
		if err := run(ctx, s); err != nil {
			return fmt.Errorf("%v: %w", s.limit, err)
		}
		if err := before.check(); err != nil {
			return fmt.Errorf("%v, when it was over: %w", s.limit, err)
		}
	}
	return nil
}

func (s *setup) validate() error {
	switch {
	case s.lasts <= 0 || s.every <= 0:
		return fmt.Errorf("-for and -every are %v (each algorithm) and %v, want more than zero", s.lasts, s.every)
	case s.keys == 0:
		return fmt.Errorf("-keys is 0, want more")
	case s.maxKeys < 2*watched:
		return fmt.Errorf("-max is %d, want at least %d", s.maxKeys, 2*watched)
	case s.workers < 1:
		return fmt.Errorf("-workers is %d, want at least 1", s.workers)
	}
	return nil
}
