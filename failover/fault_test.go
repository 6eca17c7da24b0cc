package failover_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
)

var moody = crowd.Moody(6, errDown, 10*time.Millisecond)

func TestFaultsWhile64GoroutinesDecide(t *testing.T) {
	before := runtime.NumGoroutine()
	s := newStore(t, shared)
	l := over(t, s, failover.AllowAll[string](), failover.Options{Timeout: 3 * time.Millisecond, Failures: 4, OpenFor: 4 * time.Millisecond})
	s.fail(func(ctx context.Context) error {
		if ctx == context.Background() { // a settlement: its context never ends
			return nil
		}
		return moody(ctx)
	})
	var decisions, errs atomic.Uint64
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for i := 0; i < 200 || !allFaults(l.Stats()); i++ {
				decisions.Add(1)
				if err := decideSomehow(l, g+i); err != nil {
					errs.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, errs.Load(), "no caller sees an error")
	st := l.Stats()
	require.Equal(t, decisions.Load(), st.Primary+st.Instead)
	crowd.Gone(t, before)
}

// allFaults reports whether each kind of failure has occurred. The primary fails at random,
// so no fixed number of decisions covers all kinds. The test goes on until all have occurred.
func allFaults(s failover.Stats) bool {
	return s.Opened > 0 && s.Panics > 0 && s.Timeouts > 0 && s.Unavailable > 0
}

func decideSomehow(l *failover.Limiter[string], i int) error {
	switch i % 3 {
	case 0:
		_, err := l.Take(context.Background(), "k", 1)
		return err
	case 1:
		l.Allow("k", 1)
		return nil
	}
	r, err := l.Reserve(context.Background(), "k", 2, 0)
	_ = r.Settle(1) // if the call fails, the caller gets an error
	return err
}

// A bubble measures time exactly: no decision takes longer than Timeout, whatever the primary does.
func TestNoDecisionTakesLongerThanTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Timeout: 20 * time.Millisecond, OpenFor: 50 * time.Millisecond})
		s.fail(func(ctx context.Context) error {
			if rand.IntN(4) == 0 {
				time.Sleep(time.Duration(rand.IntN(int(time.Second))))
			}
			return moody(ctx)
		})
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 100 {
					began := time.Now()
					take(t, l, 1)
					require.LessOrEqual(t, time.Since(began), 20*time.Millisecond)
					time.Sleep(time.Duration(rand.IntN(int(5 * time.Millisecond))))
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
	})
}
