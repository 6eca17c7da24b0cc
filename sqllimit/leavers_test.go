package sqllimit

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Each process has one or two callers in line. Most hang up while they have a booking, and other processes book in the gaps.
func TestCallersOfMixedCostsThatHangUpUseTheRateOfADatabase(t *testing.T) {
	testsize.Sequential(t)
	for _, c := range []struct {
		rate  int
		takes time.Duration
		most  int
		least float64
	}{{20, time.Millisecond, 8, .98}, {20, 10 * time.Millisecond, 8, .95}, {5, time.Millisecond, 8, .9}, {100, 100 * time.Millisecond, 8, .92}, {20, 100 * time.Millisecond, 1, .93}} {
		l := linetest.Leavers{Rate: c.rate, Burst: 10, Processes: 5, Most: c.most, Takes: c.takes, For: 3 * time.Minute, Seed: testsize.Seed(1)}
		used := fakeStore.Leavers(t, l)
		t.Logf("%v: %.1f %% used", l, 100*used)
		assert.GreaterOrEqual(t, used, c.least, l)
		assert.LessOrEqual(t, used, 1.03, l)
	}
}

func TestACallThatIsServedByTheBookingOfOneThatLeavesIsReportedAsAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, db := newFake(t, func() int64 { return time.Now().UnixMicro() })
		var mu sync.Mutex // guards events
		var events []ratelimit.Event[string]
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 1).Named("calls")
		l := newLimiter(t, db, limit, &Options{OnDecision: func(e ratelimit.Event[string]) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}})
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		ctx, leave := context.WithCancel(t.Context())
		go func() { _ = l.Wait(ctx, "k", 1) }()
		time.Sleep(100 * time.Millisecond)
		time.AfterFunc(100*time.Millisecond, leave)
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, events, 3)
		require.True(t, events[2].Decision.Allowed)
		require.True(t, events[2].Spent)
		require.Equal(t, limit, events[2].Decision.Limit)
	})
}

// slow returns a fake database. Each of its steps takes 100 ms until the answer.
func slow(t *testing.T) (*fakeDB, *sql.DB) {
	f, db := newFake(t, func() int64 { return time.Now().UnixMicro() })
	f.set(nil, func(string) error {
		time.Sleep(100 * time.Millisecond)
		return nil
	})
	return f, db
}

func (f *fakeDB) count(step string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requested) - len(slices.DeleteFunc(slices.Clone(f.requested), func(s string) bool { return s == step }))
}

func TestACallJoinsATransactionThatWaitsForItsRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, db := slow(t)
		limit := ratelimit.FixedWindow(ratelimit.PerHour(100))
		a, b := newLimiter(t, db, limit, nil), newLimiter(t, db, limit, nil)
		require.True(t, a.Allow("k", 1))
		a.contended.note([]byte("calls:k"))
		b.contended.note([]byte("calls:k"))
		before := f.count("commit")
		begin := time.Now()
		var wg sync.WaitGroup
		take := func(l *Limiter, after, takes time.Duration) {
			wg.Go(func() {
				time.Sleep(after)
				d, err := l.Take(t.Context(), "k", 1)
				assert.NoError(t, err)
				assert.True(t, d.Allowed)
				assert.Equal(t, takes, time.Since(begin)-after)
			})
		}
		take(a, 0, 500*time.Millisecond) // this call has the row from 200 to 400 ms
		take(b, 50*time.Millisecond, 650*time.Millisecond)
		take(b, 350*time.Millisecond, 350*time.Millisecond)
		take(b, 450*time.Millisecond, 250*time.Millisecond)
		wg.Wait()
		require.Equal(t, 2, f.count("commit")-before)
		d, err := a.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 95, d.Remaining)
	})
}

func TestACallThatJoinsATransactionHasItsOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, db := slow(t)
		l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(100)), nil)
		require.True(t, l.Allow("k", 1))
		l.contended.note([]byte("calls:k"))
		f.set(nil, func(step string) error {
			switch step {
			case "lock":
				time.Sleep(800 * time.Millisecond)
			case "update":
				time.Sleep(400 * time.Millisecond)
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			begin := time.Now()
			_, err := l.Take(t.Context(), "k", 1)
			assert.ErrorIs(t, err, ratelimit.ErrUnanswered)
			assert.Equal(t, defaultTimeout, time.Since(begin))
		})
		time.Sleep(700 * time.Millisecond)
		begin := time.Now()
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 97, d.Remaining)
		require.Equal(t, 500*time.Millisecond, time.Since(begin))
		wg.Wait()
	})
}

func TestATransactionThatEndsAtATimeoutFailsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, db := slow(t)
		l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(100)), nil)
		require.True(t, l.Allow("k", 1))
		l.contended.note([]byte("calls:k"))
		p, err := l.planFor("k")
		require.NoError(t, err)
		o := &operation{do: (*account).take, plan: p, cost: 1}
		o.ctx, o.done, o.expires = t.Context(), make(chan struct{}), time.Now().Add(150*time.Millisecond) // after the read
		l.together([]byte("calls:k"), new(line), []*operation{o})
		require.ErrorIs(t, o.err, context.DeadlineExceeded)
		require.NotErrorIs(t, o.err, context.Canceled)
		require.ErrorContains(t, o.err, "no answer within 1s (Options.Timeout)")
	})
}

func TestWhatACallBooksWhoseCallerHasLeftGoesToTheNextCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, db := slow(t)
		l := newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), patient)
		require.True(t, l.Allow("k", 1))
		begin := time.Now()
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(130*time.Millisecond, leave) // while the booking is written
		require.ErrorIs(t, l.Wait(ctx, "k", 1), ratelimit.ErrUnanswered)
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		require.InDelta(t, 1, time.Since(begin).Seconds(), .2)
		time.Sleep(time.Second) // the second caller's own booking is given back
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	})
}

func TestAProcessLocksARowAsLongAsOthersChangeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, db := slow(t)
		limit := ratelimit.FixedWindow(ratelimit.PerHour(100))
		a, b := newLimiter(t, db, limit, nil), newLimiter(t, db, limit, nil)
		require.True(t, a.Allow("k", 1))
		b.contended.note([]byte("calls:k"))
		before, _ := f.counted()
		for range 5 { // for three seconds
			var wg sync.WaitGroup
			wg.Go(func() { assert.True(t, a.Allow("k", 1)) })
			time.Sleep(50 * time.Millisecond)
			assert.True(t, b.Allow("k", 1))
			wg.Wait()
			time.Sleep(50 * time.Millisecond)
		}
		writes, _ := f.counted()
		require.Equal(t, 10, writes-before)
		require.Equal(t, 10, f.count("update"), "none was in vain")
	})
}

func TestATransactionEndsWhenTheLastCallThatHasJoinedMustHaveItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, db := slow(t)
		l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(100)), nil)
		begin := time.Now()
		within := func(d time.Duration) []*operation {
			o := new(operation)
			o.expires = begin.Add(d)
			return []*operation{o}
		}
		b := &batch{l: l, line: &line{operations: within(1500 * time.Millisecond)}, operations: within(time.Second)}
		ctx, end := b.extend(t.Context())
		defer end()
		b.join()
		<-ctx.Done()
		require.Equal(t, 1500*time.Millisecond, time.Since(begin))
		require.Equal(t, context.DeadlineExceeded, context.Cause(ctx))
		b.line.operations = within(2 * time.Second)
		b.join()
		require.Len(t, b.operations, 2, "it is too late to join")
	})
}
