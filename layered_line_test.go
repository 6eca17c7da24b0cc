package ratelimit_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// stackLine is a stack with a limit for each user and one for all, and its waiting calls.
type stackLine struct {
	users  *ratelimit.Keyed[string]
	all    *ratelimit.Keyed[struct{}]
	stack  *ratelimit.Layered[string]
	wg     sync.WaitGroup
	mu     sync.Mutex // guards the fields below
	served []string
	errs   []error
}

func newStackLine(t *testing.T, user, all ratelimit.Limit) *stackLine {
	x := &stackLine{users: ratelimit.Must(ratelimit.New[string](user, nil)), all: ratelimit.Must(ratelimit.New[struct{}](all, nil))}
	x.stack = ratelimit.Must(ratelimit.All(ratelimit.By(x.users, itself), ratelimit.Global[string](x.all)))
	return x
}

// wait adds a call, and returns when it waits or is done.
func (x *stackLine) wait(ctx context.Context, user, name string, cost int) {
	x.wg.Go(func() {
		err := x.stack.Wait(ctx, user, cost)
		x.mu.Lock()
		defer x.mu.Unlock()
		if err != nil {
			x.errs = append(x.errs, err)
		} else {
			x.served = append(x.served, name)
		}
	})
	synctest.Wait()
}

// take returns the calls served since the last take.
func (x *stackLine) take() []string {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	served := x.served
	x.served = nil
	return served
}

func TestAStacksWaitsAreServedInTheOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStackLine(t, ratelimit.TokenBucket(ratelimit.PerSecond(100), 1), ratelimit.TokenBucket(ratelimit.PerSecond(10), 1))
		var want []string
		require.True(t, x.all.Allow(struct{}{}, 1))
		for i := range 40 {
			name := strconv.Itoa(i)
			want = append(want, name)
			x.wait(t.Context(), "user "+strconv.Itoa(i%7), name, 1)
		}
		start := time.Now()
		x.wg.Wait()
		require.Equal(t, 4*time.Second, time.Since(start))
		require.Equal(t, want, x.take())
	})
}

func TestAnExhaustedUserDelaysNoOtherAtASharedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStackLine(t, ratelimit.TokenBucket(ratelimit.PerMinute(1), 1), ratelimit.TokenBucket(ratelimit.PerSecond(10), 1))
		require.True(t, x.stack.Allow("ann", 1))
		ctx, leave := context.WithCancel(t.Context())
		for range 50 {
			x.wait(ctx, "ann", "ann", 1)
		}
		for i := range 20 {
			x.wait(t.Context(), "user "+strconv.Itoa(i), strconv.Itoa(i), 1)
		}
		time.Sleep(2 * time.Second)
		require.Len(t, x.take(), 20)
		leave()
		x.wg.Wait()
	})
}

func TestALargeCostIsServedInItsTurnAmongSmallOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStackLine(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), ratelimit.TokenBucket(ratelimit.PerSecond(10), 10))
		require.True(t, x.all.Allow(struct{}{}, 10))
		for i := range 5 {
			x.wait(t.Context(), strconv.Itoa(i), "small", 1)
		}
		x.wait(t.Context(), "large", "large", 8)
		for i := range 50 {
			x.wait(t.Context(), strconv.Itoa(i), "small", 1)
		}
		x.wg.Wait()
		require.Equal(t, 5, slices.Index(x.take(), "large"))
	})
}

func TestTwoThousandWaitsOfAStackUseItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStackLine(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), ratelimit.TokenBucket(ratelimit.PerSecond(1000), 10))
		ctx, leave := context.WithCancel(t.Context())
		served := make([]int, 2000)
		for i := range served {
			x.wg.Go(func() {
				for x.stack.Wait(ctx, strconv.Itoa(i), 1) == nil {
					x.mu.Lock()
					served[i]++
					x.mu.Unlock()
				}
			})
		}
		time.Sleep(10 * time.Second)
		leave()
		x.wg.Wait()
		sum := 0
		for _, n := range served {
			require.GreaterOrEqual(t, n, 4, "each in its turn")
			sum += n
		}
		require.GreaterOrEqual(t, sum, 9700)
	})
}

func TestAStacksWaitsFollowEachChange(t *testing.T) {
	for name, change := range map[string]func(x *stackLine) error{
		"a raise":      func(x *stackLine) error { return x.all.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(100), 1)) },
		"unlimited":    func(x *stackLine) error { return x.all.SetLimit(ratelimit.Unlimited()) },
		"a reset":      func(x *stackLine) error { return x.all.Reset(context.Background(), struct{}{}) },
		"a grant":      func(x *stackLine) error { return x.all.Adjust(context.Background(), struct{}{}, -1) },
		"one leaves":   func(x *stackLine) error { return nil },
		"it is barred": func(x *stackLine) error { return x.all.SetLimit(ratelimit.Blocked()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newStackLine(t, ratelimit.TokenBucket(ratelimit.PerSecond(100), 5), ratelimit.TokenBucket(ratelimit.PerMinute(1), 1))
				require.True(t, x.all.Allow(struct{}{}, 1))
				gone, leave := context.WithCancel(t.Context())
				defer leave()
				x.wait(gone, "gone", "gone", 1)
				for i := range 5 {
					x.wait(t.Context(), strconv.Itoa(i), strconv.Itoa(i), 1)
				}
				leave()
				require.NoError(t, change(x))
				synctest.Wait()
				switch name {
				case "a raise":
					time.Sleep(50 * time.Millisecond)
					require.Len(t, x.take(), 5)
				case "unlimited":
					require.Len(t, x.take(), 5)
				case "a reset", "a grant":
					require.Equal(t, []string{"0"}, x.take())
				case "one leaves":
					time.Sleep(time.Minute)
					require.Equal(t, []string{"0"}, x.take())
				case "it is barred":
					begin := time.Now()
					x.wg.Wait()
					require.Zero(t, time.Since(begin))
					require.Len(t, x.errs, 6)
					require.ErrorIs(t, x.errs[5], ratelimit.ErrBlocked)
				}
				x.wg.Wait()
			})
		})
	}
}

func TestMaxWaitingBoundsTheWaitsOfAStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[string]{MaxWaiting: 2}))
		stack := ratelimit.Must(ratelimit.All(ratelimit.By(l, itself)))
		require.True(t, l.Allow("k", 1))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { require.NoError(t, stack.Wait(t.Context(), "k", 1)) })
		}
		synctest.Wait()
		require.Equal(t, 2, l.Stats().Waiting)
		require.ErrorIs(t, stack.Wait(t.Context(), "k", 1), ratelimit.ErrLimited)
		wg.Wait()
		require.Zero(t, l.Stats().Waiting)
	})
}

// If the queue of a stack's leaky bucket is full, calls stand in the stack's line.
func TestAFullQueueOfAStackHasALine(t *testing.T) {
	for _, work := range []int{1, 5} {
		synctest.Test(t, func(t *testing.T) {
			x := newStackLine(t, ratelimit.TokenBucket(ratelimit.PerSecond(100), 100), ratelimit.LeakyBucket(ratelimit.PerSecond(10), work))
			var want []string
			for i := range 40 {
				want = append(want, strconv.Itoa(i))
				x.wait(t.Context(), "user", want[i], 1)
			}
			begin := time.Now()
			x.wg.Wait()
			require.Equal(t, 3900*time.Millisecond, time.Since(begin))
			require.Equal(t, want, x.take())

			for i := range 40 {
				x.wait(t.Context(), "user", want[i], 1)
			}
			require.NoError(t, x.all.SetLimit(ratelimit.LeakyBucket(ratelimit.PerSecond(100), work)))
			begin = time.Now()
			x.wg.Wait()
			require.LessOrEqual(t, time.Since(begin), time.Duration(work)*100*time.Millisecond+400*time.Millisecond, "a raise")
			require.Equal(t, want, x.take())

			for i := range 20 {
				x.wait(t.Context(), "user", want[i], 1)
			}
			require.NoError(t, x.all.SetLimit(ratelimit.Blocked()))
			begin = time.Now()
			x.wg.Wait()
			require.LessOrEqual(t, time.Since(begin), time.Duration(work)*10*time.Millisecond, "those in the queue go on")
			for _, err := range x.errs {
				require.ErrorIs(t, err, ratelimit.ErrBlocked)
			}
			require.GreaterOrEqual(t, len(x.errs), 20-work-1)
		})
	}
}
