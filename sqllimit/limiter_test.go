package sqllimit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

// state is a database's error with an SQLSTATE.
type state string

func (s state) Error() string    { return "ERROR: the database says (SQLSTATE " + string(s) + ")" }
func (s state) SQLState() string { return string(s) }

// patient has no timeout that a busy machine could meet.
var patient = &Options{Timeout: time.Minute}

func newLimiter(t testing.TB, db *sql.DB, limit ratelimit.Limit, o *Options) *Limiter {
	t.Helper()
	if limit.Name == "" {
		limit = limit.Named("calls")
	}
	l, err := New(db, limit, o)
	require.NoError(t, err)
	return l
}

// gate delays a name's steps until it is opened.
type gate struct {
	step    string
	reached chan struct{}
	open    chan struct{}
}

func newGate(step string) *gate {
	return &gate{step, make(chan struct{}, 1000), make(chan struct{})}
}

func (g *gate) hold(step string) error {
	if step == g.step {
		g.reached <- struct{}{}
		<-g.open
	}
	return nil
}

// requests counts the operations waiting for the next decision on a key.
func (l *Limiter) requests(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.lines[key]; k != nil {
		return len(k.operations)
	}
	return 0
}

func queued(t *testing.T, l *Limiter, key string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return l.requests(key) == n }, 30*time.Second, time.Millisecond)
}

func TestCallersOfOneKeyShareARoundTrip(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(30)), patient)
	g := newGate("read")
	f.set(g.hold, nil)
	var wg sync.WaitGroup
	var allowed atomic.Int32
	take := func() {
		d, err := l.Take(t.Context(), "k", 2)
		assert.NoError(t, err)
		if d.Allowed {
			allowed.Add(2)
		} else {
			assert.Equal(t, time.Hour, d.RetryAfter)
		}
	}
	wg.Go(take)
	<-g.reached
	for range 19 {
		wg.Go(take)
	}
	queued(t, l, "k", 19)
	close(g.open)
	wg.Wait()
	require.Equal(t, int32(30), allowed.Load())
	writes, steps := f.counted()
	require.Equal(t, 2, writes)
	require.Equal(t, 5, steps, "connect, read and insert, and read and update: %v", f.requested)
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.lines) == 0
	}, 30*time.Second, time.Millisecond, "nothing stays behind")
}

func TestOrdersAreDecidedAsTheyCame(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
	g := newGate("read")
	f.set(g.hold, nil)
	var wg sync.WaitGroup
	wg.Go(func() { assert.True(t, l.Allow("k", 1)) })
	<-g.reached
	for i, request := range []struct {
		cost    int
		allowed bool
	}{{8, true}, {2, false}, {1, true}, {1, false}} {
		wg.Go(func() { assert.Equal(t, request.allowed, l.Allow("k", request.cost), i) })
		queued(t, l, "k", i+1)
	}
	close(g.open)
	wg.Wait()
}

func TestADecisionThatChangesNothingWritesNothing(t *testing.T) {
	f, db := newFake(t, newClock().now)
	ctx, l := t.Context(), newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerHour(10), 10), patient)
	require.True(t, l.Allow("k", 8))
	require.True(t, l.Allow("fresh", 1))
	require.NoError(t, l.Adjust(ctx, "fresh", -1))
	take := func(cost int) func() (any, error) { return func() (any, error) { return l.Take(ctx, "k", cost) } }
	denied := ratelimit.Decision{Limit: l.Describe().Limits[0], Remaining: 2, RetryAfter: 6 * time.Minute, ResetAfter: 48 * time.Minute}
	for name, c := range map[string]struct {
		call func() (any, error)
		want any // if not nil
		err  error
	}{
		"Adjust of a fresh key": {call: func() (any, error) { return nil, l.Adjust(ctx, "fresh", -1) }}, // the row would be written as it is
		"Adjust by 0":           {call: func() (any, error) { return nil, l.Adjust(ctx, "k", 0) }},
		"Take above the rest":   {call: take(3), want: denied},
		"Take above the burst":  {call: take(11), err: ratelimit.ErrExceedsLimit},
		"Take below 0":          {call: take(-1), err: ratelimit.ErrNegativeCost},
		"Take of 0":             {call: take(0)},
		"Allow of 0":            {call: func() (any, error) { return l.Allow("k", 0), nil }, want: true},
		"Peek":                  {call: func() (any, error) { d, err := l.Peek(ctx, "k", 2); return d.Allowed, err }, want: true},
		"Each":                  {call: func() (any, error) { return nil, l.Each(ctx, func(string, ratelimit.Decision) bool { return true }) }},
		"a reservation that is denied": {call: func() (any, error) {
			r, err := l.Reserve(ctx, "k", 5, 0)
			return r.Allowed, errors.Join(err, r.Settle(9))
		}, want: false},
	} {
		t.Run(name, func(t *testing.T) {
			before, _ := f.counted()
			got, err := c.call()
			require.ErrorIs(t, err, c.err)
			if c.want != nil {
				require.Equal(t, c.want, got)
			}
			after, _ := f.counted()
			require.Equal(t, before, after)
			require.NotContains(t, f.requested, "lock")
		})
	}
}

func TestAnotherProcessThatIsFirstCountsAndIsLockedOut(t *testing.T) {
	f, db := newFake(t, newClock().now)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(10))
	l, other := newLimiter(t, db, limit, patient), newLimiter(t, db, limit, patient)
	first := func(before string) {
		var done atomic.Bool
		f.set(func(step string) error {
			if step == before && done.CompareAndSwap(false, true) {
				assert.True(t, other.Allow("k", 3))
			}
			return nil
		}, nil)
	}
	first("insert")
	d, err := l.Take(t.Context(), "k", 2)
	require.NoError(t, err)
	require.Equal(t, 5, d.Remaining)
	require.Equal(t, []string{"begin", "lock", "update", "commit"}, f.requested[len(f.requested)-4:])
	first("lock")
	d, err = l.Take(t.Context(), "k", 4)
	require.NoError(t, err)
	require.False(t, d.Allowed)
	require.Equal(t, 2, d.Remaining)
	writes, _ := f.counted()
	require.Equal(t, 3, writes)
}

func TestAKeyThatMetAConflictBeginsWithTheLock(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
	require.True(t, l.Allow("k", 1))
	l.contended.note([]byte("calls:k"))
	f.requested = nil
	require.True(t, l.Allow("k", 1))
	require.Equal(t, []string{"read", "begin", "lock", "update", "commit"}, f.requested)
	f.requested = nil
	require.False(t, l.Allow("k", 9))
	require.Equal(t, []string{"read"}, f.requested, "a denial takes no lock")
}

func TestAnErrorShowsWhetherTheCostMayBeCharged(t *testing.T) {
	lost := io.ErrUnexpectedEOF
	for _, test := range []struct {
		name        string
		fail, lose  func(string) error
		contended   bool
		unavailable bool
		unanswered  bool
	}{
		{"no connection", at("connect", lost), nil, false, true, false},
		{"the read is lost", at("read", lost), nil, false, true, false},
		{"the write is lost before", at("insert", lost), nil, false, true, true},
		{"the write is lost after", nil, at("insert", lost), false, true, true},
		{"the write is refused", at("insert", state("25006")), nil, false, true, false},
		{"the write is not permitted", at("insert", state("42501")), nil, false, true, false},
		{"the password is wrong", at("connect", state("28P01")), nil, false, true, false},
		{"the user is unknown", at("connect", state("28000")), nil, false, true, false},
		{"the database is unknown", at("connect", state("3D000")), nil, false, true, false},
		{"MySQL denies a command", at("insert", errors.New("Error 1142 (42000): INSERT command denied to user")), nil, false, true, false},
		{"MySQL denies the database", at("connect", errors.New("Error 1044 (42000): Access denied for user")), nil, false, true, false},
		{"MySQL knows no such database", at("connect", errors.New("Error 1049 (42000): Unknown database")), nil, false, true, false},
		{"MySQL has another password", at("connect", errors.New("Error 1045 (28000): Access denied for user")), nil, false, true, false},
		{"the table is missing", at("read", state("42P01")), nil, false, false, false},
		{"MySQL has no such table", at("read", errors.New("Error 1146 (42S02): Table 'x.rate_limit' doesn't exist")), nil, false, false, false},
		{"the statement is malformed", at("insert", state("42601")), nil, false, false, false},
		{"the connection was bad", at("insert", driver.ErrBadConn), nil, false, true, false},
		{"the server shuts down", at("insert", state("57P01")), nil, false, true, true},
		{"no transaction", at("begin", lost), nil, true, true, false},
		{"the lock is lost", at("lock", lost), nil, true, true, false},
		{"the write of a transaction is lost", nil, at("insert", lost), true, true, false},
		{"the commit is lost", nil, at("commit", lost), true, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, db := newFake(t, newClock().now)
			l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
			if test.contended {
				l.contended.note([]byte("calls:k"))
			}
			f.set(test.fail, test.lose)
			d, err := l.Take(t.Context(), "k", 3)
			require.Error(t, err)
			assert.Equal(t, ratelimit.Decision{Limit: l.Describe().Limits[0]}, d)
			assert.Equal(t, test.unavailable, errors.Is(err, ratelimit.ErrUnavailable), err)
			assert.Equal(t, test.unanswered, errors.Is(err, ratelimit.ErrUnanswered), err)
			if !test.unavailable {
				assert.ErrorContains(t, err, "table rate_limit")
			}
			f.set(nil, nil)
			d, err = l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			if !test.unanswered {
				require.Equal(t, 10, d.Remaining)
			} else {
				require.Contains(t, []int{7, 10}, d.Remaining, "once, or not at all")
			}
		})
	}
}

func TestARefusalOfTheUserKeepsItsTextAndNamesTheRemedy(t *testing.T) {
	for text, refusal := range map[string]error{
		"(check user and password in the connection string":                                      state("28P01"),
		"(check the database's name in the connection string)":                                   state("3D000"),
		"(the user needs SELECT, INSERT, UPDATE and DELETE on table rate_limit)":                 state("42501"),
		"(the user needs SELECT, INSERT, UPDATE and DELETE on table rate_limit, or check the da": errors.New("Error 1044 (42000): Access denied"),
	} {
		f, db := newFake(t, newClock().now)
		l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
		f.set(at("read", refusal), nil)
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.NotErrorIs(t, err, ratelimit.ErrUnanswered)
		require.ErrorIs(t, err, refusal)
		require.ErrorContains(t, err, refusal.Error()+" "+text)
		require.ErrorIs(t, l.Reset(t.Context(), "k"), ratelimit.ErrUnavailable)
	}
}

func TestADeniedCallerGetsNoErrorOfAnothersLoss(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
	require.True(t, l.Allow("k", 5))
	g := newGate("read")
	f.set(g.hold, at("update", io.ErrUnexpectedEOF))
	var wg sync.WaitGroup
	wg.Go(func() { assert.False(t, l.Allow("k", 9)) })
	<-g.reached
	wg.Go(func() { // it is denied by the written state
		d, err := l.Take(t.Context(), "k", 6)
		assert.NoError(t, err)
		assert.False(t, d.Allowed)
	})
	queued(t, l, "k", 1)
	wg.Go(func() { // it changes the key
		_, err := l.Take(t.Context(), "k", 4)
		assert.ErrorIs(t, err, ratelimit.ErrUnanswered)
	})
	queued(t, l, "k", 2)
	wg.Go(func() { // it is denied only if the call before was charged
		d, err := l.Take(t.Context(), "k", 2)
		assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
		assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
		assert.False(t, d.Allowed)
	})
	queued(t, l, "k", 3)
	close(g.open)
	wg.Wait()
}

func TestConflictsOfTransactionsAreTriedAgain(t *testing.T) {
	for _, step := range []string{"insert", "lock", "commit"} {
		f, db := newFake(t, newClock().now)
		l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
		if step != "insert" {
			l.contended.note([]byte("calls:k"))
		}
		var failed atomic.Int32
		f.set(func(s string) error {
			if s == step && failed.Add(1) <= 2 {
				return state([]string{"40001", "40P01"}[failed.Load()%2])
			}
			return nil
		}, nil)
		d, err := l.Take(t.Context(), "k", 3)
		require.NoError(t, err, step)
		require.Equal(t, 7, d.Remaining)
	}
}

func TestConnectionsThatTurnOutBrokenAreReplaced(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
	var failed atomic.Int32
	f.set(func(s string) error {
		if s == "read" && failed.Add(1) <= stale {
			return io.ErrUnexpectedEOF
		}
		return nil
	}, nil)
	require.True(t, l.Allow("k", 1))
}

func TestACallerThatLeavesBeforeTheWriteIsNotCharged(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
	g := newGate("read")
	f.set(g.hold, nil)
	first, leave := context.WithCancel(t.Context())
	second, leaveToo := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	gone := func(ctx context.Context) {
		_, err := l.Take(ctx, "k", 4)
		assert.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
		assert.NotErrorIs(t, err, ratelimit.ErrUnavailable)
	}
	wg.Go(func() { gone(first) })
	<-g.reached
	wg.Go(func() { gone(second) })
	queued(t, l, "k", 1)
	leave()
	leaveToo()
	wg.Wait()
	close(g.open)
	d, err := l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 9, d.Remaining)
}

func TestACallerThatLeavesDuringTheWriteGetsErrUnanswered(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
	g := newGate("insert")
	f.set(g.hold, nil)
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := l.Take(ctx, "k", 4); done <- err }()
	<-g.reached
	leave()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ratelimit.ErrUnanswered)
	close(g.open)
	d, err := l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 5, d.Remaining, "the write goes on without its caller")
}

func TestATimeoutBoundsACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, db := newFake(t, newClock().now)
		l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), nil)
		for _, step := range []string{"read", "insert"} {
			g := newGate(step)
			f.set(g.hold, nil)
			begin := time.Now()
			_, err := l.Take(t.Context(), "k", 4)
			require.Equal(t, defaultTimeout, time.Since(begin))
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			require.ErrorContains(t, err, "no answer within 1s (Options.Timeout)")
			require.Equal(t, step == "insert", errors.Is(err, ratelimit.ErrUnanswered))
			close(g.open)
			synctest.Wait()
		}
	})
}

func TestWithoutATimeoutTheContextBoundsACall(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), &Options{Timeout: -1})
	g := newGate("read")
	f.set(g.hold, nil)
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := l.Take(ctx, "k", 4); done <- err }()
	<-g.reached
	leave()
	require.ErrorIs(t, <-done, context.Canceled)
	close(g.open)
	f.set(nil, nil)
	require.True(t, l.Allow("k", 10))
}

func TestAWaitThatLeavesGivesItsBookingBack(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerHour(1), 1), patient)
	require.True(t, l.Allow("k", 1))
	for _, step := range []string{"", "both"} { // once while the Wait sleeps, and once while it books
		g := newGate(step)
		f.set(g.hold, nil)
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Wait(ctx, "k", 1) }()
		if step == "" {
			require.Eventually(t, func() bool {
				d, err := l.Peek(t.Context(), "k", 1)
				return err == nil && d.RetryAfter > time.Hour
			}, 30*time.Second, time.Millisecond)
			leave()
		} else {
			<-g.reached
			leave()
			close(g.open)
		}
		err := <-done
		require.ErrorIs(t, err, context.Canceled)
		if errors.Is(err, ratelimit.ErrUnanswered) {
			continue // the machine was too slow to answer within lingering, as the error states
		}
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, time.Hour, d.RetryAfter)
	}
}

func TestAWaitFailsAtOnceIfItsTimeIsTooLate(t *testing.T) {
	_, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerHour(1), 1), patient)
	require.NoError(t, l.Wait(t.Context(), "k", 1))
	ctx, end := context.WithTimeout(t.Context(), 30*time.Minute)
	defer end()
	err := l.Wait(ctx, "k", 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var late *ratelimit.LateError
	require.ErrorAs(t, err, &late)
	require.InDelta(t, time.Hour, late.RetryAfter(), float64(time.Minute))
	require.Equal(t, "context deadline exceeded: the call would have to wait for longer than it may, under token-bucket 1/h burst 1", err.Error())
	queue := newLimiter(t, db, ratelimit.LeakyBucket(ratelimit.PerHour(1), 1).Named("queue"), patient)
	require.NoError(t, queue.Wait(t.Context(), "k", 1))
	err = queue.Wait(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrLimited)
	require.ErrorAs(t, err, &late)
	require.NoError(t, queue.Wait(t.Context(), "k", 0))
}

func TestAClockThatStepsBackGrantsNothing(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerHour(10), 10), ratelimit.LeakyBucket(ratelimit.PerHour(10), 10), ratelimit.FixedWindow(ratelimit.PerHour(10)),
		ratelimit.SlidingLog(ratelimit.PerHour(10)), ratelimit.SlidingCounter(ratelimit.PerHour(10)), ratelimit.Calendar(10, ratelimit.Day("UTC")),
	} {
		clock := newClock()
		_, db := newFake(t, clock.now)
		l := newLimiter(t, db, limit, patient)
		require.True(t, l.Allow("k", 10))
		clock.advance(-23 * time.Hour)
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed, limit)
		clock.advance(d.RetryAfter - time.Microsecond)
		require.False(t, l.Allow("k", 1), limit)
		clock.advance(time.Microsecond)
		require.True(t, l.Allow("k", 1), limit)
	}
}

// Spending in a calendar's window can be given back while the window lasts, also after others have spent.
func TestACalendarGivesBackInItsWindow(t *testing.T) {
	clock := newClock()
	_, db := newFake(t, clock.now)
	l := newLimiter(t, db, ratelimit.Calendar(10, ratelimit.Day("UTC")), patient)
	r, err := l.Reserve(t.Context(), "k", 6, 0)
	require.NoError(t, err)
	late, err := l.Reserve(t.Context(), "k", 3, 0)
	require.NoError(t, err)
	clock.advance(time.Hour)
	require.True(t, l.Allow("k", 1))
	require.NoError(t, r.Settle(2))
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 4, d.Remaining)
	clock.advance(24 * time.Hour)
	require.True(t, l.Allow("k", 5))
	require.NoError(t, late.Cancel())
	d, err = l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 5, d.Remaining, "what was spent yesterday is not given back today")
}

// Monday and its week begin at the same time. Monday's spending is regained on Tuesday, and does not count in the week.
func TestACalendarGivesBackNothingOfAnotherPeriod(t *testing.T) {
	clock := newClock()
	_, db := newFake(t, clock.now)
	for time.UnixMicro(clock.now()).UTC().Weekday() != time.Monday {
		clock.advance(time.Hour)
	}
	l := newLimiter(t, db, ratelimit.Calendar(10, ratelimit.Day("UTC")), patient)
	r, err := l.Reserve(t.Context(), "k", 10, 0)
	require.NoError(t, err)
	clock.advance(24 * time.Hour)
	require.True(t, l.Allow("k", 1))
	clock.advance(24 * time.Hour)
	require.NoError(t, l.SetLimit(ratelimit.Calendar(10, ratelimit.Week("UTC", time.Monday))))
	require.True(t, l.Allow("k", 1))
	require.NoError(t, r.Cancel())
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 9, d.Remaining)
}

// Other units of the same period leave a calendar's windows as they are.
func TestACalendarGivesBackUnderOtherUnitsOfItsPeriod(t *testing.T) {
	clock := newClock()
	_, db := newFake(t, clock.now)
	day := ratelimit.Day("UTC")
	l := newLimiter(t, db, ratelimit.Calendar(10, day), patient)
	r, err := l.Reserve(t.Context(), "k", 5, 0)
	require.NoError(t, err)
	require.NoError(t, l.SetLimit(ratelimit.Calendar(15, day)))
	require.True(t, l.Allow("k", 1))
	require.NoError(t, r.Cancel())
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 14, d.Remaining)
}

func TestResetEndsReservationsAndDeletionDoesNot(t *testing.T) {
	clock := newClock()
	f, db := newFake(t, clock.now)
	l := newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerMinute(10), 10), patient)
	ctx := t.Context()
	r, err := l.Reserve(ctx, "k", 5, 0)
	require.NoError(t, err)
	require.NoError(t, l.Reset(ctx, "k"))
	require.NoError(t, r.Settle(9))
	d, err := l.Peek(ctx, "k", 1)
	require.NoError(t, err)
	require.Equal(t, 10, d.Remaining)

	for range 2 { // once without a row, and once with a new one
		r, err = l.Reserve(ctx, "j", 5, 0)
		require.NoError(t, err)
		clock.advance(time.Hour)
		f.mu.Lock()
		delete(f.rows, "calls:j")
		f.mu.Unlock()
		require.NoError(t, r.Settle(9))
		d, err = l.Peek(ctx, "j", 1)
		require.NoError(t, err)
		require.Equal(t, 6, d.Remaining, "what was above the reserved cost is charged")
		clock.advance(time.Hour)
	}
}

func TestAReservationOfNothingChargesTheActualCost(t *testing.T) {
	_, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
	r, err := l.Reserve(t.Context(), "k", 0, 0)
	require.NoError(t, err)
	require.NoError(t, r.Settle(4))
	require.NoError(t, l.Adjust(t.Context(), "k", 3))
	require.NoError(t, l.Adjust(t.Context(), "k", -1))
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 4, d.Remaining)
}

// After a change of limit, all denials name the same instant, although nothing is written.
func TestAChangeOfLimitIsAsOfOneInstant(t *testing.T) {
	clock := newClock()
	f, db := newFake(t, clock.now)
	l := newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10), patient)
	require.True(t, l.Allow("k", 10))
	clock.advance(2 * time.Second)
	require.ErrorIs(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(0), 1)), ratelimit.ErrInvalidLimit)
	require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerHour(1), 10)))
	d, err := l.Take(t.Context(), "k", 3)
	require.NoError(t, err)
	require.Equal(t, 2, d.Remaining)
	require.Equal(t, time.Hour, d.RetryAfter)
	clock.advance(time.Minute)
	d, err = l.Take(t.Context(), "k", 3)
	require.NoError(t, err)
	require.Equal(t, 59*time.Minute, d.RetryAfter)
	writes, _ := f.counted()
	require.Equal(t, 1, writes)
}

func TestTheLimitOfAKey(t *testing.T) {
	_, db := newFake(t, newClock().now)
	var event ratelimit.Event[string]
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), &Options{Timeout: time.Minute, LimitFor: func(key string) ratelimit.Limit {
		return map[string]ratelimit.Limit{
			"free": ratelimit.FixedWindow(ratelimit.PerHour(2)), "staff": ratelimit.Unlimited(), "bad": ratelimit.FixedWindow(ratelimit.Per(1, 1)), "out": ratelimit.Blocked(),
		}[key]
	}, OnDecision: func(e ratelimit.Event[string]) { event = e }})
	require.Equal(t, []ratelimit.Limit{{}}, l.Describe().Limits)
	for _, c := range []struct {
		key   string
		cost  int
		spent bool
		err   error
	}{
		{key: "anyone", cost: 10, spent: true},
		{key: "free", cost: 3, err: ratelimit.ErrExceedsLimit},
		{key: "free", cost: 2, spent: true},
		{key: "staff", cost: 1000},
		{key: "bad", cost: 1, err: ratelimit.ErrInvalidLimit},
		{key: "out", cost: 1, err: ratelimit.ErrBlocked},
	} {
		t.Run(fmt.Sprint(c.key, c.cost), func(t *testing.T) {
			require.Equal(t, c.err == nil, l.Allow(c.key, c.cost))
			require.Equal(t, c.spent, event.Spent)
			require.ErrorIs(t, event.Err, c.err)
			if c.key == "free" {
				require.Equal(t, "calls", event.Decision.Limit.Name)
			}
			if c.err != nil {
				_, err := l.Take(t.Context(), c.key, c.cost)
				require.ErrorIs(t, err, c.err)
			}
		})
	}
}

func TestNewRefusesInvalidArguments(t *testing.T) {
	_, db := newFake(t, newClock().now)
	good := ratelimit.FixedWindow(ratelimit.PerHour(10)).Named("calls")
	for text, make := range map[string]func() (*Limiter, error){
		"db is nil": func() (*Limiter, error) { return New(nil, good, nil) },
		"Options.Dialect is 7, want PostgreSQL or MySQL": func() (*Limiter, error) { return New(db, good, &Options{Dialect: 7}) },
		"Options.Table is \"a b\"":                       func() (*Limiter, error) { return New(db, good, &Options{Table: "a b"}) },
		"both empty":                                     func() (*Limiter, error) { return New(db, good.Named(""), nil) },
		"no colon":                                       func() (*Limiter, error) { return New(db, good, &Options{Name: "a:b"}) },
		"has 201 bytes, want at most": func() (*Limiter, error) {
			return New(db, good, &Options{Name: strings.Repeat("n", 201)})
		},
		"Rate.Per is 1.5µs": func() (*Limiter, error) {
			return New(db, ratelimit.FixedWindow(ratelimit.Per(1, 1500*time.Nanosecond)).Named("calls"), nil)
		},
		"Rate.Units is 10001, want at most 10000": func() (*Limiter, error) {
			return New(db, ratelimit.SlidingLog(ratelimit.PerHour(10_001)).Named("calls"), nil)
		},
	} {
		l, err := make()
		require.ErrorContains(t, err, text)
		require.Nil(t, l)
	}
	_, err := New(db, ratelimit.Limit{Name: "calls"}, nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	for _, table := range []string{"1a", "a.b.c", "a;b", "a.", "\"a\""} {
		require.Empty(t, Schema(PostgreSQL, table), table)
	}
	require.Empty(t, Schema(7, ""))
	require.Contains(t, Schema(PostgreSQL, "billing.budgets"), "CREATE INDEX budgets_expires ON billing.budgets (expires)")
}

func TestALongKeyIsRefusedByTheBound(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
	key := strings.Repeat("secret", 171)[:1025]
	_, err := l.Take(t.Context(), key, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.ErrorContains(t, err, "1025 bytes, want at most 1024")
	require.NotContains(t, err.Error(), "secret")
	require.ErrorIs(t, l.Reset(t.Context(), key), ratelimit.ErrInvalidKey)
	require.False(t, l.Allow(key, 0))
	require.True(t, l.Allow(key[:1024], 10))
	require.True(t, l.Allow("", 10))
	require.False(t, l.Allow("", 1))
	require.Len(t, f.rows, 2)
}

func TestAForeignRowIsAnErrorThatNamesTheTable(t *testing.T) {
	f, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.SlidingLog(ratelimit.PerHour(10)), patient)
	require.True(t, l.Allow("k", 1))
	good := f.rows["calls:k"]
	for n := range good.state {
		for _, bad := range [][]byte{good.state[:n], append(append([]byte{}, good.state[:n]...), good.state[n]^0x80)} {
			f.rows["calls:k"] = row{at: good.at, state: bad, expires: good.expires}
			_, err := l.Take(t.Context(), "k", 1)
			require.ErrorContains(t, err, "sqllimit: table rate_limit: the row's state is not one of this package and version", n)
			require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
			require.Equal(t, bad, f.rows["calls:k"].state, "nothing was changed")
		}
	}
	require.NoError(t, l.Reset(t.Context(), "k"))
	require.True(t, l.Allow("k", 10))
}

// A row of unknown origin may hold anything: it is read or refused, and nothing panics.
func FuzzRow(f *testing.F) {
	clock := newClock()
	db, handle := newFake(f, clock.now)
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerHour(10), 10), ratelimit.LeakyBucket(ratelimit.PerHour(10), 10), ratelimit.FixedWindow(ratelimit.PerHour(10)),
		ratelimit.SlidingLog(ratelimit.PerHour(10)), ratelimit.SlidingCounter(ratelimit.PerHour(10)), ratelimit.Calendar(10, ratelimit.Day("UTC")),
	} {
		l := newLimiter(f, handle, limit, patient)
		require.NoError(f, l.Reset(context.Background(), "k"))
		f.Add(db.rows["calls:k"].state, int64(0))
		require.True(f, l.Allow("k", 7))
		f.Add(db.rows["calls:k"].state, int64(1))
		_, err := l.Reserve(context.Background(), "k", 7, 1<<62)
		require.NoError(f, err)
		f.Add(db.rows["calls:k"].state, int64(-1))
		lower := limit
		lower.Rate.Units, lower.Burst = 2, min(2, limit.Burst)
		require.NoError(f, l.SetLimit(lower))
		require.NoError(f, l.Adjust(context.Background(), "k", 1)) // puts the key under this limit, and sets units aside
		f.Add(db.rows["calls:k"].state, int64(2))
	}
	f.Fuzz(func(t *testing.T, state []byte, passed int64) {
		now := clock.now()
		plans := []*plan{}
		for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerHour(10), 10), ratelimit.SlidingLog(ratelimit.PerMinute(3)), ratelimit.Calendar(10, ratelimit.Month("UTC", 1))} {
			p, err := newPlan(limit)
			require.NoError(t, err)
			plans = append(plans, p)
		}
		for _, p := range plans {
			a, err := open(row{reading: now, found: true, at: now - max(min(passed, 1<<50), -1<<50), state: state}, p)
			if err != nil {
				continue
			}
			o := &operation{plan: p, cost: 1, ahead: math.MaxInt64, keep: meter.Open}
			require.NoError(t, a.take(o))
			require.GreaterOrEqual(t, o.decision.Remaining, 0)
			require.NoError(t, a.adjust(p, -1))
			next := a.next()
			next.reading, next.found = now, true
			_, err = open(next, p)
			require.NoError(t, err, "what is written can be read")
		}
	})
}

func TestRowsThatAreOverAreDeletedAHundredAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := func() int64 { return time.Now().UnixMicro() }
		f, db := newFake(t, now)
		l := newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), patient)
		other := newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10).Named("other"), patient)
		require.True(t, other.Allow("k", 1))
		require.NoError(t, l.Adjust(t.Context(), "debtor", 10_000))
		for i := range 250 {
			require.True(t, l.Allow(fmt.Sprint(i), 1))
		}
		f.rows["calls:foreign"] = row{state: []byte("foreign")}
		left := func() int { synctest.Wait(); return len(f.rows) }
		time.Sleep(sweepEach)
		require.True(t, l.Allow("hot", 1))
		require.Equal(t, 254, left(), "nothing is over as yet")
		time.Sleep(sweepEach)
		require.True(t, l.Allow("hot", 1))
		require.Equal(t, 254, left(), "the lowest reading of the last period is what counts")
		time.Sleep(sweepEach)
		require.True(t, l.Allow("hot", 1))
		require.Equal(t, 154, left())
		require.True(t, l.Allow("hot", 1))
		require.Equal(t, 54, left())
		require.True(t, l.Allow("hot", 1))
		require.Equal(t, 4, left(), "the hot key, the debtor, the foreign row and that of another name")
		d, err := l.Peek(t.Context(), "debtor", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		time.Sleep(20 * time.Minute)
		for range 4 {
			time.Sleep(sweepEach)
			require.True(t, l.Allow("hot", 1))
		}
		require.Equal(t, 3, left())
	})
}

func TestARowIsNotDeletedBeforeItIsOverUnderItsPresentLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, db := newFake(t, func() int64 { return time.Now().UnixMicro() })
		l := newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10), patient)
		require.True(t, l.Allow("k", 10))
		require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerHour(1), 10)))
		require.True(t, l.Allow("other", 1))
		for range 20 {
			time.Sleep(sweepEach)
			require.NoError(t, l.Adjust(t.Context(), "hot", 1))
		}
		synctest.Wait()
		require.Contains(t, f.requested, "postpone")
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
	})
}

// A process may not have received a longer limit yet. It must not judge a row by its own limit.
func TestARowIsNotDeletedBeforeItIsOverUnderTheLimitThatItNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, db := newFake(t, func() int64 { return time.Now().UnixMicro() })
		long := newLimiter(t, db, ratelimit.Calendar(1000, ratelimit.Month("UTC", 1)), patient)
		short := newLimiter(t, db, ratelimit.TokenBucket(ratelimit.PerSecond(100), 100), patient)
		require.True(t, short.Allow("k", 1), "its expiry is that of the short limit")
		require.True(t, long.Allow("k", 900))
		for range 30 {
			time.Sleep(sweepEach)
			require.NoError(t, short.Adjust(t.Context(), "hot", 1))
		}
		synctest.Wait()
		require.Contains(t, f.requested, "postpone")
		d, err := long.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 99, d.Remaining)
	})
}

// A lowered limit sets units aside for longer than the key needs to be fresh under it.
func TestARowIsNotDeletedBeforeTheUnitsSetAsideLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, db := newFake(t, func() int64 { return time.Now().UnixMicro() })
		short, long := ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), ratelimit.TokenBucket(ratelimit.PerHour(100), 100)
		l := newLimiter(t, db, short, patient)
		require.True(t, l.Allow("k", 1), "its expiry is that of the short limit")
		require.NoError(t, l.SetLimit(long))
		require.True(t, l.Allow("k", 99))
		require.NoError(t, l.SetLimit(short))
		require.NoError(t, l.Adjust(t.Context(), "k", 1))
		for range 30 {
			time.Sleep(sweepEach)
			require.NoError(t, l.Adjust(t.Context(), "hot", 1))
		}
		synctest.Wait()
		require.Contains(t, f.requested, "postpone")
		require.NoError(t, l.SetLimit(long))
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.InDelta(t, 10, d.Remaining, 5, "90 were set aside, and count again")
	})
}

// No row is deleted because a clock leaps forward and is set right again.
func TestALeapOfTheClockDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leap atomic.Int64
		f, db := newFake(t, func() int64 { return time.Now().UnixMicro() + leap.Load() })
		l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), patient)
		require.True(t, l.Allow("k", 10))
		time.Sleep(sweepEach)
		require.True(t, l.Allow("a", 1))
		leap.Store(1e6 * 3600 * 24 * 365)
		require.True(t, l.Allow("b", 1))
		leap.Store(0)
		time.Sleep(sweepEach)
		require.True(t, l.Allow("c", 1))
		synctest.Wait()
		require.Len(t, f.rows, 4)
		require.False(t, l.Allow("k", 1))
	})
}

func TestEach(t *testing.T) {
	clock := newClock()
	f, db := newFake(t, clock.now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(2)), patient)
	neighbour := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("callsx"), patient)
	require.True(t, neighbour.Allow("k", 1))
	for i := range 2*pageRows + 1 {
		require.True(t, l.Allow(fmt.Sprintf("%05d", i), 1+i%2))
	}
	require.True(t, l.Allow("", 2))
	before, _ := f.counted()
	seen := map[string]bool{}
	limited := 0
	require.NoError(t, l.Each(t.Context(), func(key string, d ratelimit.Decision) bool {
		require.False(t, seen[key])
		if seen[key] = true; !d.Allowed {
			limited++
			require.Equal(t, time.Hour, d.RetryAfter)
		}
		return true
	}))
	require.Len(t, seen, 2*pageRows+2)
	require.Equal(t, pageRows+1, limited)
	after, _ := f.counted()
	require.Equal(t, before, after)

	visits := 0
	require.NoError(t, l.Each(t.Context(), func(string, ratelimit.Decision) bool { visits++; return visits < 3 }))
	require.Equal(t, 3, visits)
	f.rows["calls:"] = row{state: []byte("foreign")}
	visits = 0
	require.ErrorContains(t, l.Each(t.Context(), func(string, ratelimit.Decision) bool { visits++; return true }), "the row's state")
	require.Equal(t, 2*pageRows+1, visits)
	f.set(at("page", state("42P01")), nil)
	require.ErrorContains(t, l.Each(t.Context(), func(string, ratelimit.Decision) bool { return true }), "table rate_limit")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.Each(ctx, func(string, ratelimit.Decision) bool { return true }), context.Canceled)
}

// Callers of several processes reserve and settle random costs on random keys.
// Their spending never exceeds the limit, and the rest of it can be used up.
func TestManyCallersOfManyProcessesSpendExactly(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	_, db := newFake(t, newClock().now)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(500))
	var spent [5]atomic.Int64
	var wg sync.WaitGroup
	for process := range 4 {
		l := newLimiter(t, db, limit, patient)
		for caller := range 8 {
			rng := rand.New(rand.NewPCG(seed, uint64(process<<8|caller)))
			wg.Go(func() {
				for denied := 0; denied < 20; {
					key, cost := rng.IntN(len(spent)), 1+rng.IntN(3)
					r, err := l.Reserve(t.Context(), fmt.Sprint(key), cost, 0)
					if !assert.NoError(t, err) {
						return
					}
					if !r.Allowed {
						denied++
						continue
					}
					spent[key].Add(int64(cost))
					if rng.IntN(4) == 0 {
						actual := rng.IntN(cost + 1)
						assert.NoError(t, r.Settle(actual))
						spent[key].Add(int64(actual - cost))
					}
				}
			})
		}
	}
	wg.Wait()
	l := newLimiter(t, db, limit, patient)
	for key := range spent {
		for l.Allow(fmt.Sprint(key), 1) {
			spent[key].Add(1)
		}
		require.Equal(t, int64(500), spent[key].Load())
	}
}

func TestMisuse(t *testing.T) {
	_, db := newFake(t, newClock().now)
	l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(2)), patient)
	var none context.Context
	_, err := l.Take(none, "k", 1)
	require.NoError(t, err)
	for _, layers := range [][]ratelimit.Joining{{{Limiter: new(Limiter)}}, {{Limiter: (*Limiter)(nil)}}} {
		_, err := layers[0].Limiter.(*Limiter).Join(layers)
		require.EqualError(t, err, "layer 0: this Limiter is nil or zero: make one with New")
	}
	for _, zero := range []*Limiter{nil, new(Limiter)} {
		require.PanicsWithError(t, "sqllimit: this Limiter is nil or zero: make one with New", func() { zero.Allow("k", 1) })
		require.Panics(t, func() { _ = zero.Wait(t.Context(), "k", 1) })
		require.Panics(t, func() { _ = zero.Reset(t.Context(), "k") })
		require.Panics(t, func() { _ = zero.Each(t.Context(), nil) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Take(ctx, "k", 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, l.Wait(ctx, "k", 1), context.Canceled)
	require.NoError(t, l.Adjust(t.Context(), "k", math.MinInt))
	require.NoError(t, l.Adjust(t.Context(), "k", math.MaxInt))
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.False(t, d.Allowed)
}

func TestEachWaitsForAConnectionForItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newClock()
		_, db := newFake(t, clock.now)
		db.SetMaxOpenConns(1)
		l := newLimiter(t, db, ratelimit.Calendar(10, ratelimit.Day("UTC")), &Options{Timeout: 5 * time.Second})
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		began := time.Now()
		require.ErrorIs(t, l.Each(context.Background(), func(string, ratelimit.Decision) bool { return true }), ratelimit.ErrUnavailable)
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

// A sweep finds keys of other programs, and LimitFor may panic for them. The panic would end the program.
func TestAPanicOfLimitForEndsNoSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, db := newFake(t, func() int64 { return time.Now().UnixMicro() })
		old := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerSecond(10)), patient)
		require.True(t, old.Allow("strange", 1))
		l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerSecond(10)), &Options{Timeout: time.Minute, LimitFor: func(key string) ratelimit.Limit {
			if key == "strange" {
				panic(key)
			}
			return ratelimit.Limit{}
		}})
		require.True(t, l.Allow("gone", 1))
		for range 3 {
			time.Sleep(sweepEach)
			require.True(t, l.Allow("hot", 1))
		}
		synctest.Wait()
		require.Contains(t, f.rows, "calls:strange")
		require.NotContains(t, f.rows, "calls:gone")
	})
}

func TestTheDebtOfAKeyIsReadFromItsRow(t *testing.T) {
	_, db := newFake(t, newClock().now)
	rate := ratelimit.PerHour(10)
	for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(rate, 10), ratelimit.LeakyBucket(rate, 10), ratelimit.FixedWindow(rate),
		ratelimit.SlidingLog(rate), ratelimit.SlidingCounter(rate), ratelimit.Calendar(10, ratelimit.Month("UTC", 1))} {
		l := newLimiter(t, db, limit.Named(limit.Algorithm.String()), patient)
		require.NoError(t, l.Adjust(t.Context(), "k", 17))
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, 7, d.Debt, "%v", limit)
		require.NoError(t, l.Each(t.Context(), func(_ string, d ratelimit.Decision) bool {
			assert.Equal(t, 7, d.Debt, "%v", limit)
			return true
		}))
		require.NoError(t, l.Adjust(t.Context(), "k", -7))
		d, err = l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Zero(t, d.Debt, "%v", limit)
	}
}

// LimitFor may be slow, for example a query of the same database. Callers that come while it runs do not call it again.
func TestConcurrentCallersOfAKeyShareOneCallOfLimitFor(t *testing.T) {
	_, db := newFake(t, newClock().now)
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		l := newLimiter(t, db, ratelimit.FixedWindow(ratelimit.PerHour(10)), &Options{LimitFor: func(string) ratelimit.Limit {
			time.Sleep(time.Second)
			calls.Add(1)
			return ratelimit.Unlimited() // this limit needs no database
		}})
		stack, err := ratelimit.All(ratelimit.By(l, func(key string) (string, error) { return key, nil }))
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				if i%2 == 0 {
					assert.True(t, l.Allow("k", 1))
				} else {
					assert.True(t, stack.Allow("k", 1))
				}
			})
		}
		wg.Wait()
		assert.Equal(t, int64(1), calls.Load())
	})
}
