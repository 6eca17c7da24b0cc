package sqllimit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// pair is a request charged to two keys.
type pair struct{ user, total string }

// stackOfTwo returns a stack of a limit for each user and one for all.
func stackOfTwo(t testing.TB, db *sql.DB, limit ratelimit.Limit) (stack *ratelimit.Layered[pair], users, all *Limiter) {
	t.Helper()
	made := func(name string) *Limiter {
		l, err := New(db, limit.Named(name), &Options{Name: name, Timeout: 20 * time.Second})
		require.NoError(t, err)
		return l
	}
	users, all = made("users"), made("all")
	stack, err := ratelimit.All(
		ratelimit.By(users, func(r pair) (string, error) { return r.user, nil }),
		ratelimit.By(all, func(r pair) (string, error) { return r.total, nil }),
	)
	require.NoError(t, err)
	return stack, users, all
}

// steps counts how often a step was done.
func (f *fakeDB) steps(name string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.requested {
		if s == name {
			n++
		}
	}
	return n
}

// held makes the first step of a name wait until release is called. begun is closed when the step waits.
func (f *fakeDB) held(name string) (begun chan struct{}, release func()) {
	begun, wait := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	f.set(func(step string) error {
		if step == name && first.CompareAndSwap(false, true) {
			close(begun)
			<-wait
		}
		return nil
	}, nil)
	return begun, func() { close(wait) }
}

func TestRequestsThatShareAKeyShareATransaction(t *testing.T) {
	f, db := newFake(t, func() int64 { return 1e15 })
	stack, users, all := stackOfTwo(t, db, ratelimit.FixedWindow(ratelimit.PerDay(60)))
	begun, release := f.held("commit")
	var wg sync.WaitGroup
	var allowed atomic.Int64
	take := func(i int) {
		wg.Go(func() {
			d, err := stack.Take(t.Context(), pair{fmt.Sprint("user", i), "all"}, 1)
			assert.NoError(t, err)
			if d.Allowed {
				allowed.Add(1)
			}
		})
	}
	take(0)
	<-begun
	q := queueOf(users)
	for i := range 99 {
		take(1 + i)
	}
	require.Eventually(t, func() bool { q.mu.Lock(); defer q.mu.Unlock(); return len(q.waiting) == 99 }, 20*time.Second, time.Millisecond)
	release()
	wg.Wait()
	assert.EqualValues(t, 60, allowed.Load())
	assert.Equal(t, 2, f.steps("begin"), "the 99 that came during the first transaction share the second")
	d, err := all.Peek(t.Context(), "all", 1)
	require.NoError(t, err)
	assert.Zero(t, d.Remaining)
	charged := 0
	for i := range 100 {
		d, err := users.Peek(t.Context(), fmt.Sprint("user", i), 1)
		require.NoError(t, err)
		charged += 60 - d.Remaining
	}
	assert.Equal(t, 60, charged, "whoever was denied by the limit for all was charged nothing")
}

// queues holds the queues examined by tests.
var queues sync.Map // *queue by *Limiter

func queueOf(l *Limiter) *queue {
	q, _ := queues.Load(l)
	return q.(*queue)
}

func init() {
	madeQueue = func(j *joint) {
		for _, l := range j.limiters {
			queues.Store(l, &j.queue)
		}
	}
}

func TestRequestsThatShareNoKeyDoNotWaitForEachOther(t *testing.T) {
	f, db := newFake(t, func() int64 { return 1e15 })
	stack, _, _ := stackOfTwo(t, db, ratelimit.FixedWindow(ratelimit.PerDay(60)))
	begun, release := f.held("commit")
	done := make(chan error)
	go func() { _, err := stack.Take(t.Context(), pair{"ann", "a"}, 1); done <- err }()
	<-begun
	d, err := stack.Take(t.Context(), pair{"bob", "b"}, 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	release()
	require.NoError(t, <-done)
}

// A request on two keys is not overtaken forever by requests on one.
func TestARequestThatWaitsKeepsItsPlace(t *testing.T) {
	f, db := newFake(t, func() int64 { return 1e15 })
	stack, users, _ := stackOfTwo(t, db, ratelimit.FixedWindow(ratelimit.PerDay(60)))
	begun, release := f.held("commit")
	var wg sync.WaitGroup
	take := func(r pair) {
		wg.Go(func() {
			_, err := stack.Take(t.Context(), r, 1)
			assert.NoError(t, err)
		})
	}
	take(pair{"ann", "a"})
	<-begun
	q := queueOf(users)
	for i, r := range []pair{{"bob", "a"}, {"bob", "b"}} {
		take(r)
		require.Eventually(t, func() bool { q.mu.Lock(); defer q.mu.Unlock(); return len(q.waiting) == i+1 }, 20*time.Second, time.Millisecond,
			"it waits, the second one because the first waits for the same key")
	}
	release()
	wg.Wait()
	assert.Equal(t, 2, f.steps("begin"), "the two share the next transaction")
}

func TestACallerThatLeavesBeforeItsTransactionIsChargedNothing(t *testing.T) {
	f, db := newFake(t, func() int64 { return 1e15 })
	stack, users, all := stackOfTwo(t, db, ratelimit.FixedWindow(ratelimit.PerDay(60)))
	begun, release := f.held("commit")
	first := make(chan error)
	go func() { _, err := stack.Take(t.Context(), pair{"ann", "all"}, 1); first <- err }()
	<-begun
	ctx, end := context.WithCancel(t.Context())
	second := make(chan error)
	go func() { _, err := stack.Take(ctx, pair{"bob", "all"}, 1); second <- err }()
	q := queueOf(users)
	require.Eventually(t, func() bool { q.mu.Lock(); defer q.mu.Unlock(); return len(q.waiting) == 1 }, 20*time.Second, time.Millisecond)
	end()
	err := <-second
	assert.ErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, ratelimit.ErrUnanswered, "it was not sent")
	release()
	require.NoError(t, <-first)
	require.Eventually(t, func() bool { q.mu.Lock(); defer q.mu.Unlock(); return len(q.busy) == 0 && len(q.waiting) == 0 }, 20*time.Second, time.Millisecond)
	d, err := all.Peek(t.Context(), "all", 1)
	require.NoError(t, err)
	assert.Equal(t, 59, d.Remaining)
}

// If a Wait's context ends while its charge is written, it gives the charge back, even if the answer comes much later.
func TestAWaitThatLeavesGivesBackEachKey(t *testing.T) {
	f, db := newFake(t, func() int64 { return 1e15 })
	stack, users, all := stackOfTwo(t, db, ratelimit.FixedWindow(ratelimit.PerDay(60)))
	begun, release := f.held("commit")
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- stack.Wait(ctx, pair{"ann", "all"}, 7) }()
	<-begun
	end()
	err := <-done
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, err, ratelimit.ErrUnanswered)
	release()
	for _, c := range []struct {
		l   *Limiter
		key string
	}{{users, "ann"}, {all, "all"}} {
		require.Eventually(t, func() bool {
			d, err := c.l.Peek(context.Background(), c.key, 1)
			return err == nil && d.Remaining == 60
		}, 20*time.Second, time.Millisecond)
	}
}

func TestAStackSweepsTheRowsThatItHasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		f, db := newFake(t, func() int64 { return 1e15 + time.Since(begin).Microseconds() })
		stack, _, _ := stackOfTwo(t, db, ratelimit.FixedWindow(ratelimit.PerSecond(60)))
		rows := func() int {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.rows)
		}
		for i := range 30 {
			_, err := stack.Take(t.Context(), pair{fmt.Sprint("user", i), fmt.Sprint("all", i)}, 1)
			require.NoError(t, err)
		}
		require.Equal(t, 60, rows())
		for range 6 {
			time.Sleep(sweepEach)
			_, err := stack.Take(t.Context(), pair{"ann", "all"}, 1)
			require.NoError(t, err)
			synctest.Wait()
		}
		assert.Equal(t, 2, rows())
	})
}

// After a restart of the database, the pool's connections are closed.
func TestAStackGoesOnAfterBrokenConnections(t *testing.T) {
	f, db := newFake(t, func() int64 { return 1e15 })
	stack, _, _ := stackOfTwo(t, db, ratelimit.FixedWindow(ratelimit.PerDay(60)))
	var broken atomic.Int64
	f.set(func(step string) error {
		if step == "lock" && broken.Add(1) <= 2 {
			return errors.New("unexpected EOF")
		}
		return nil
	}, nil)
	d, err := stack.Take(t.Context(), pair{"ann", "all"}, 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 59, d.Remaining)
	f.set(at("lock", errors.New("unexpected EOF")), nil)
	_, err = stack.Take(t.Context(), pair{"ann", "all"}, 1)
	assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
	f.set(at("commit", errors.New("unexpected EOF")), nil)
	_, err = stack.Take(t.Context(), pair{"ann", "all"}, 1)
	assert.ErrorIs(t, err, ratelimit.ErrUnanswered, "it may have been committed")
}
