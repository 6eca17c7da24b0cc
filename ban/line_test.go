package ban_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
)

// line has calls waiting in a limiter's line, behind a ban.
type line struct {
	limiter, strikes, bans *ratelimit.Keyed[string]
	ban                    *ban.Limiter[string]
	wg                     sync.WaitGroup
	mu                     sync.Mutex // guards errs
	errs                   []error
}

func newLine(t *testing.T) *line {
	l := &line{
		limiter: ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), nil)),
		strikes: ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerMinute(1)), nil)),
		bans:    ratelimit.Must(ratelimit.New[string](banLimit, nil)),
	}
	l.ban = banOf(t, l.limiter, l.strikes, l.bans)
	require.True(t, l.ban.Allow("k", 1))
	return l
}

// comes starts n waiting calls.
func (l *line) comes(ctx context.Context, n int) {
	for range n {
		l.wg.Go(func() {
			err := l.ban.Wait(ctx, "k", 1)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.errs = append(l.errs, err)
		})
	}
	synctest.Wait()
}

// ended returns the ended calls' results.
func (l *line) ended() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.errs)
}

// A ban ends the waits in line at once, whichever call begins it. No waiting call passes during the ban.
func TestABanEndsTheWaitsInTheLimitersLine(t *testing.T) {
	for name, begin := range map[string]struct {
		ban    func(t *testing.T, l *line)
		within time.Duration
	}{
		"a strike": {ban: func(t *testing.T, l *line) { require.NoError(t, l.ban.Strike(t.Context(), "k", 1)) }},
		"a denial": {ban: func(t *testing.T, l *line) { require.False(t, l.ban.Allow("k", 1)) }},
		"another process, and then a call": {ban: func(t *testing.T, l *line) {
			require.True(t, l.bans.Allow("k", 1))
			require.False(t, l.ban.Allow("k", 1))
		}},
		"another process": {ban: func(t *testing.T, l *line) { require.True(t, l.bans.Allow("k", 1)) }, within: time.Second},
	} {
		for within, reason := range map[time.Duration]error{
			math.MaxInt64: ratelimit.ErrLimited, 10 * time.Minute: context.DeadlineExceeded,
		} {
			t.Run(name+", "+within.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLine(t)
					ctx, cancel := context.WithTimeout(t.Context(), within)
					defer cancel()
					l.comes(ctx, 500)
					time.Sleep(5 * time.Second)
					synctest.Wait()
					require.Len(t, l.ended(), 50)
					start := time.Now()
					begin.ban(t, l)
					l.wg.Wait()
					took := time.Since(start)
					require.LessOrEqual(t, took, begin.within)
					require.Len(t, l.ended(), 500)
					passed := 0
					for _, err := range l.ended() {
						if err == nil {
							passed++
							continue
						}
						var late *ratelimit.LateError
						require.ErrorAs(t, err, &late)
						require.Equal(t, banLimit, late.Limit)
						require.Equal(t, "ban", late.Package)
						require.Equal(t, time.Hour-took, late.RetryAfter())
						require.ErrorIs(t, err, reason)
						require.NotErrorIs(t, err, context.Canceled)
					}
					require.LessOrEqual(t, passed, 50+int(took/(100*time.Millisecond)))
					require.Zero(t, l.ban.Waiting(), "keys")
					d, err := l.limiter.Peek(t.Context(), "k", 1)
					require.NoError(t, err)
					require.LessOrEqual(t, d.RetryAfter, 100*time.Millisecond, "nothing is left of the line")
				})
			})
		}
	}
}

// A ban ends the waits of its own key alone.
func TestABanLeavesTheLinesOfOtherKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t)
		l.comes(t.Context(), 20)
		require.NoError(t, l.ban.Strike(t.Context(), "other", 1))
		l.wg.Wait()
		for _, err := range l.ended() {
			require.NoError(t, err)
		}
	})
}

// If a ban ends early, so do the waits for its end.
func TestAWaitForABansEndFollowsReset(t *testing.T) {
	for name, end := range map[string]struct {
		reset  func(t *testing.T, l *line) error
		within time.Duration
	}{
		"of the ban":         {reset: func(t *testing.T, l *line) error { return l.ban.Reset(t.Context(), "k") }},
		"by another process": {reset: func(t *testing.T, l *line) error { return l.bans.Reset(t.Context(), "k") }, within: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t)
				require.NoError(t, l.ban.Strike(t.Context(), "k", 1))
				time.Sleep(time.Minute)
				l.comes(t.Context(), 3)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Empty(t, l.ended())
				start := time.Now()
				require.NoError(t, end.reset(t, l))
				l.wg.Wait()
				require.LessOrEqual(t, time.Since(start), end.within+200*time.Millisecond)
				require.Equal(t, []error{nil, nil, nil}, l.ended())
				require.Zero(t, l.ban.Waiting(), "keys")
			})
		})
	}
}

// A map cannot find these keys again. Their calls wait and end in the same way.
func TestWaitsOfKeysThatCannotBeComparedEndWithABan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := func(k any) (string, error) {
			if k, ok := k.([]string); ok {
				return k[0], nil
			}
			return "nan", nil
		}
		l := newLine(t)
		b := ratelimit.Must(ban.New(ratelimit.Map[any, string](l.limiter, text), ratelimit.Map[any, string](l.strikes, text), ratelimit.Map[any, string](l.bans, text)))
		for _, key := range []any{[]string{"k"}, math.NaN()} {
			l.limiter.Allow("nan", 1)
			done := make(chan error, 20)
			for range 20 {
				go func() { done <- b.Wait(t.Context(), key, 1) }()
			}
			synctest.Wait()
			require.Equal(t, 20, b.Waiting(), "each for itself")
			require.NoError(t, b.Strike(t.Context(), key, 1))
			time.Sleep(time.Second)
			synctest.Wait()
			require.Len(t, done, 20)
			late := 0
			for range 20 {
				if errors.Is(<-done, ratelimit.ErrLimited) {
					late++
				}
			}
			require.GreaterOrEqual(t, late, 9)
			require.Zero(t, b.Waiting())
		}
	})
}

// The limiter of bans panics while calls wait. Stats counts the panic, and no wait ends.
func TestAPanicOfBansWhileCallsWaitIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t)
		require.NoError(t, l.limiter.SetLimit(ratelimit.TokenBucket(ratelimit.PerMinute(10), 1)))
		var looks atomic.Int64
		bans := ratelimit.Map[string, string](l.bans, func(k string) (string, error) {
			if looks.Add(1) == 2 {
				panic("bomb")
			}
			return k, nil
		})
		b := ratelimit.Must(ban.New[string](l.limiter, l.strikes, bans))
		done := make(chan error, 2)
		go func() { done <- b.Wait(t.Context(), "k", 1) }()
		time.Sleep(time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, b.Stats().Failed)
		require.ErrorContains(t, b.Stats().LastFailure, "bomb")
		require.NoError(t, <-done)
		go func() { done <- b.Wait(t.Context(), "k", 1) }()
		time.Sleep(time.Second)
		require.True(t, l.bans.Allow("k", 1))
		require.ErrorIs(t, <-done, ratelimit.ErrLimited, "it looks again")
	})
}
