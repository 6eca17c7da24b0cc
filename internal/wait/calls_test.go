package wait_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/wait"
)

// versioned has calls that wait under the latest version of a state.
type versioned struct {
	wait.Calls
	mu      sync.Mutex // guards the fields below
	version int
	begun   []int // the callers, in the order in which they began to wait
}

func (v *versioned) now() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.version
}

// change makes a new version.
func (v *versioned) change() {
	v.mu.Lock()
	v.version++
	v.begun = nil
	v.mu.Unlock()
	v.Check()
}

// call waits until the context ends. Its attempts take a while to find their places.
func (v *versioned) call(ctx context.Context, i int, slow time.Duration) error {
	var mu sync.Mutex
	by := 0
	c := new(wait.Call)
	c.Init(&v.Calls, func() bool {
		mu.Lock()
		defer mu.Unlock()
		anew := by != v.now()
		if anew {
			c.Anew()
		}
		return anew
	})
	c.Context = ctx
	defer c.Over()
	for {
		mu.Lock()
		by = v.now()
		mu.Unlock()
		a := c.Begin()
		time.Sleep(slow)
		v.mu.Lock()
		v.begun = append(v.begun, i)
		v.mu.Unlock()
		<-a.Done()
		if err := a.Err(); !a.End(err) {
			return err
		}
	}
}

func TestCallsBeginAnewInTheOrderOfTheirArrival(t *testing.T) {
	for name, c := range map[string]struct {
		slow  time.Duration
		took  time.Duration
		order bool
	}{
		"each finds its place at once":                         {0, 0, true},
		"each takes a while":                                   {5 * time.Millisecond, 100 * time.Millisecond, true},
		"one that takes long holds up the others for a moment": {time.Minute, time.Second / 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var v versioned
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for i := range 20 {
					wg.Go(func() { require.ErrorIs(t, v.call(ctx, i, c.slow), context.Canceled) })
					time.Sleep(c.slow)
					synctest.Wait()
				}
				require.Equal(t, 20, v.Len())
				for range 3 {
					began := time.Now()
					v.change()
					require.Equal(t, c.took, time.Since(began))
					time.Sleep(time.Hour)
					synctest.Wait()
					require.Len(t, v.begun, 20)
					require.True(t, !c.order || slices.IsSorted(v.begun), "%v", v.begun)
				}
				cancel()
				wg.Wait()
				require.Zero(t, v.Len())
			})
		})
	}
}

func TestAChangeThatConcernsNoCallEndsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v versioned
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = v.call(ctx, 0, 0) })
		synctest.Wait()
		v.Check()
		synctest.Wait()
		require.Equal(t, []int{0}, v.begun)
		cancel()
		wg.Wait()
	})
}

// If a change comes between an attempt's beginning and its wait, it ends the attempt, too.
func TestACallFollowsAChangeThatComesBeforeItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v versioned
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = v.call(ctx, 0, time.Second) })
		synctest.Wait()
		v.change()
		require.Zero(t, v.Len())
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Equal(t, []int{0, 0}, v.begun)
		cancel()
		wg.Wait()
	})
}

func TestACallThatHasNotWaitedServesAnother(t *testing.T) {
	var cs wait.Calls
	c := new(wait.Call)
	c.Init(&cs, func() bool { return false })
	c.Context = t.Context()
	require.True(t, !c.Begin().End(nil))
	require.False(t, c.Over())
	c.Clear()
	c.Context = t.Context()
	c.Begin().Done()
	require.Equal(t, 1, cs.Len())
	require.True(t, c.Over())
	require.Zero(t, cs.Len())
}
