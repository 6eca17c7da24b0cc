package crowd

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Moody returns a function that fails at random. Of oneIn calls, one returns
// err, one panics, one waits for its context's end, and one takes up to late.
func Moody(oneIn int, err error, late time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		switch rand.IntN(oneIn) {
		case 0:
			return err
		case 1:
			panic("down")
		case 2:
			<-ctx.Done()
			return ctx.Err()
		case 3:
			time.Sleep(rand.N(late))
		}
		return nil
	}
}

// Gone waits until at most the given number of goroutines run: a goroutine without further work needs a moment to end.
func Gone(t testing.TB, most int) {
	t.Helper()
	for begin := time.Now(); runtime.NumGoroutine() > most; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines are left, of at most %d\n%s", runtime.NumGoroutine(), most, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// Unlocked reports whether a lock is free, or becomes free within 0.4 s. If another goroutine holds
// the lock, it only has to run again. If the caller's goroutine holds it, the lock never becomes free.
func Unlocked(mu *sync.Mutex) bool {
	for range 2_000_000 {
		if mu.TryLock() {
			mu.Unlock()
			return true
		}
		runtime.Gosched()
	}
	return false
}
