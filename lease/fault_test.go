package lease_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/lease"
)

func TestACallerLeavesWhenItsContextEndsAndTheBatchIsThereForOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 100})
		s.fail(func(context.Context) error { time.Sleep(500 * time.Millisecond); return nil })
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := l.Take(ctx, "k", 7)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		_, err = l.Take(ctx, "k", 7)
		require.ErrorIs(t, err, context.DeadlineExceeded, "it has ended already")
		time.Sleep(time.Second - 1)
		synctest.Wait()
		require.Equal(t, 7, l.Stats().Held)
		require.True(t, take(t, l, 7).Allowed)
		require.Equal(t, []int{7}, s.received(&s.requested))
	})
}

func TestARemoteLimiterThatDoesNotAnswerIsUnavailableAfterTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 100, Timeout: 200 * time.Millisecond})
		for name, hang := range map[string]func(ctx context.Context) error{
			"heeds its context":                             func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			"knows its deadline before its timer has fired": func(context.Context) error { return context.DeadlineExceeded },
			"ignores its context":                           func(context.Context) error { time.Sleep(time.Minute); return nil },
		} {
			s.fail(hang)
			for range 3 {
				began := time.Now()
				_, err := l.Take(context.Background(), name, 1)
				require.ErrorIs(t, err, errUnavailable, name)
				require.NotErrorIs(t, err, context.Canceled)
				require.LessOrEqual(t, time.Since(began), 200*time.Millisecond)
			}
		}
		s.fail(nil)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.True(t, l.Allow("ignores its context", 1))
	})
}

// A caller has set no deadline, and cancels its context. So its error must not be DeadlineExceeded.
func TestACallerThatIsCancelledSeesNoDeadlineOfOurs(t *testing.T) {
	for name, request := range map[string]func(ctx context.Context, l *lease.Limiter[string]) error{
		"Take": func(ctx context.Context, l *lease.Limiter[string]) error { _, err := l.Take(ctx, "k", 99); return err },
		"Reserve": func(ctx context.Context, l *lease.Limiter[string]) error {
			_, err := l.Reserve(ctx, "k", 99, 0)
			return err
		},
		"Peek":   func(ctx context.Context, l *lease.Limiter[string]) error { _, err := l.Peek(ctx, "k", 99); return err },
		"Adjust": func(ctx context.Context, l *lease.Limiter[string]) error { return l.Adjust(ctx, "k", 99) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l, err := lease.New[string](late{newServer(t, plenty)}, &lease.Options[string]{MaxBatch: 10, Timeout: 100 * time.Millisecond})
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(101*time.Millisecond, cancel)
				err = request(ctx, l)
				require.ErrorIs(t, err, errUnavailable)
			})
		})
	}
}

// late is a remote limiter. It returns a little after its deadline has passed.
type late struct{ *server }

func (late) spend(ctx context.Context) error {
	<-ctx.Done()
	err := ctx.Err()
	time.Sleep(2 * time.Millisecond)
	return err
}

func (l late) Take(ctx context.Context, _ string, _ int) (decision, error) {
	return decision{}, l.spend(ctx)
}

func (l late) Reserve(ctx context.Context, _ string, _ int, _ time.Duration) (*reservation, error) {
	return nil, l.spend(ctx)
}

func (l late) Peek(ctx context.Context, _ string, _ int) (decision, error) {
	return decision{}, l.spend(ctx)
}

func (l late) Adjust(ctx context.Context, _ string, _ int) error { return l.spend(ctx) }

func TestManyCallersOfAKeyShareOneFetchAndItsFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 1000})
		s.fail(func(context.Context) error { time.Sleep(time.Millisecond); return errDown })
		var failed atomic.Int64
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, err := l.Take(context.Background(), "k", 1); errors.Is(err, errUnavailable) {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1000, failed.Load())
		require.Len(t, s.received(&s.requested), 1)

		s.fail(func(context.Context) error { time.Sleep(time.Millisecond); return nil })
		for range 1000 {
			wg.Go(func() {
				if _, err := l.Take(context.Background(), "k", 1); err == nil {
					failed.Add(-1)
				}
			})
		}
		wg.Wait()
		require.Zero(t, failed.Load())
		require.Less(t, len(s.received(&s.requested))+len(s.received(&s.taken)), 10)
		require.NoError(t, l.Flush(context.Background()))
	})
}

func TestACallerDoesNotShareAnErrorOfAnothersCost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(5))
		remote := struct{ *server }{s} // without Limits, so the capacity is unknown
		l, err := lease.New[string](withoutLimits{remote}, &lease.Options[string]{MaxBatch: 100})
		require.NoError(t, err)
		s.fail(func(context.Context) error { time.Sleep(time.Millisecond); return nil })
		var wg sync.WaitGroup
		wg.Go(func() { require.False(t, l.Allow("k", 6)) })
		synctest.Wait()
		wg.Go(func() { require.True(t, l.Allow("k", 5)) })
		wg.Wait()
	})
}

// withoutLimits hides Limits and Wait.
type withoutLimits struct{ remote struct{ *server } }

func (w withoutLimits) Allow(key string, cost int) bool { return w.remote.Allow(key, cost) }

func (w withoutLimits) Take(ctx context.Context, key string, cost int) (decision, error) {
	return w.remote.Take(ctx, key, cost)
}

func (w withoutLimits) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*reservation, error) {
	return w.remote.Reserve(ctx, key, cost, maxDelay)
}

func TestAFullTableOfWaitingKeysCallsTheRemoteLimiterDirectly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 100, MaxKeys: 2})
		s.fail(func(context.Context) error { time.Sleep(time.Millisecond); return nil })
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { require.True(t, l.Allow(strconv.Itoa(i), 1)) })
		}
		wg.Wait()
		require.Len(t, s.received(&s.taken), 8)
		require.Equal(t, 2, l.Stats().Keys)
	})
}

var moody = crowd.Moody(12, errDown, 3*time.Millisecond)

func TestFaultsWhile64GoroutinesDecide(t *testing.T) {
	before := runtime.NumGoroutine()
	s := newServer(t, tight(30_000))
	l := leased(t, s, lease.Options[string]{MaxBatch: 50, MaxKeys: 5, HoldFor: 5 * time.Millisecond, Timeout: 2 * time.Millisecond})
	s.fail(func(ctx context.Context) error {
		if ctx == context.Background() { // a settlement: its context never ends
			return nil
		}
		return moody(ctx)
	})
	var used atomic.Int64
	storm(64, 150, func(i int) { used.Add(int64(decideSomehow(l, i))) })

	s.fail(nil)
	flushed(t, l)
	require.LessOrEqual(t, used.Load(), int64(s.total()), "nothing is admitted that was not charged")
	for !l.Allow("k", 1) { // on a busy machine, even a healthy server may answer too late
		time.Sleep(time.Millisecond)
	}
	flushed(t, l)
	crowd.Gone(t, before)
}

// flushed calls Flush until it succeeds. Flush fails if a batch could not be returned earlier, or arrives too late.
func flushed(t *testing.T, l *lease.Limiter[string]) {
	t.Helper()
	for err := l.Flush(context.Background()); err != nil; err = l.Flush(context.Background()) {
		require.ErrorIs(t, err, errUnavailable)
	}
}

// decideSomehow decides by one of several methods, and returns how many units were charged.
func decideSomehow(l *lease.Limiter[string], i int) (used int) {
	defer func() { _ = recover() }() // a direct call panics in the caller's goroutine
	key, cost := strconv.Itoa(i%8), 1+i%4
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+i%5)*time.Millisecond)
	defer cancel()
	switch i % 5 {
	case 0:
		if err := l.Wait(ctx, key, cost); err == nil {
			return cost
		}
	case 1:
		r, err := l.Reserve(ctx, key, cost, 0)
		if err == nil && r.Allowed && r.Settle(1) == nil {
			return 1
		}
	case 2:
		if d, err := l.Take(ctx, key, cost+40); err == nil && d.Allowed {
			return cost + 40
		}
	default:
		if l.Allow(key, cost) {
			return cost
		}
	}
	return 0
}

// storm starts n goroutines. Each calls f the given number of times.
func storm(n, times int, f func(i int)) {
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			for i := range times {
				f(g + i)
			}
		})
	}
	wg.Wait()
}
