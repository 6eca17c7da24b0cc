package failover_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/sqllimit"
)

// counted is a limiter that hangs for some time and records its own events.
type counted struct {
	*ratelimit.Keyed[string]
	events []ratelimit.Event[string]
	hangs  time.Duration
}

func newCounted(t *testing.T, units int) *counted {
	c := new(counted)
	l, err := ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(units)), &ratelimit.Options[string]{
		LimitFor:   func(string) ratelimit.Limit { time.Sleep(c.hangs); return ratelimit.Limit{} },
		OnDecision: func(e ratelimit.Event[string]) { c.events = append(c.events, e) },
	})
	require.NoError(t, err)
	c.Keyed = l
	return c
}

func quietly(o failover.Options) *failover.Options {
	o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	return &o
}

// TestARequestOfAFailoverIsReportedOnce checks that only the deciding limiter reports the
// request: the primary if it decides, and otherwise the stand-in. The primary may hang and answer
// late, may not be called, may be a failover itself, or may run on the caller's goroutine.
func TestARequestOfAFailoverIsReportedOnce(t *testing.T) {
	testsize.Sequential(t)
	for _, timeout := range []time.Duration{10 * time.Millisecond, -1} {
		for _, nested := range []bool{false, true} {
			t.Run(fmt.Sprint("timeout ", timeout, ", nested ", nested), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					primary, local := newCounted(t, 100), newCounted(t, 100)
					var outer ratelimit.Reserver[string] = primary
					all := []*counted{primary, local}
					if nested {
						second := newCounted(t, 100)
						all = append(all, second)
						outer = ratelimit.Must(failover.New[string](primary, second, quietly(failover.Options{Timeout: timeout, Failures: 3})))
					}
					l := ratelimit.Must(failover.New[string](outer, local, quietly(failover.Options{Timeout: 3 * timeout, Failures: 3})))
					reported := func() (n int) {
						synctest.Wait()
						for _, c := range all {
							n += len(c.events)
						}
						return n
					}
					requests := 0
					for _, phase := range []func(){
						func() {},
						func() {
							if timeout > 0 {
								primary.hangs = 50 * time.Millisecond
							}
						},
						func() { primary.hangs = 0; time.Sleep(3 * time.Second) },
						func() { l.Force(failover.StateOpen) },
						func() { l.Force(failover.StateClosed) },
					} {
						phase()
						for i := range 6 {
							requests++
							key := fmt.Sprint("k", requests) // a new key, so that LimitFor is called
							switch i % 3 {
							case 0:
								_, err := l.Take(t.Context(), key, 1)
								require.NoError(t, err)
							case 1:
								_, err := l.Reserve(t.Context(), key, 1, 0)
								require.NoError(t, err)
							case 2:
								l.Allow(key, 1)
							}
							if nested {
								continue // an answer in time may come in between
							}
							time.Sleep(100 * time.Millisecond) // late answers arrive
							require.Equal(t, requests, reported(), "request %d", requests)
						}
						time.Sleep(time.Second)
						assert.Equal(t, requests, reported())
					}
					s := l.Stats()
					assert.Equal(t, uint64(requests), s.Primary+s.Instead)
					if !nested {
						assert.Len(t, primary.events, int(s.Primary))
						assert.Len(t, local.events, int(s.Instead))
					}
				})
			})
		}
	}
}

// TestErrorsOfThePrimaryThatCountAreReported checks that an error is
// reported even if it is not a failure, and that Peek reports nothing.
func TestErrorsOfThePrimaryThatCountAreReported(t *testing.T) {
	primary, local := newCounted(t, 5), newCounted(t, 5)
	l := ratelimit.Must(failover.New[string](primary, local, quietly(failover.Options{Timeout: time.Minute})))
	_, err := l.Take(t.Context(), "k", 6)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.Len(t, primary.events, 1)
	require.ErrorIs(t, primary.events[0].Err, ratelimit.ErrExceedsLimit)
	_, err = l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Take(ctx, "k", 1)
	require.True(t, errors.Is(err, context.Canceled))
	assert.Len(t, primary.events, 1)
	assert.Empty(t, local.events)
}

// refused is a database driver that refuses connections.
type refused struct{}

func (refused) Connect(context.Context) (driver.Conn, error) {
	return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
}

func (refused) Driver() driver.Driver { return nil }

// TestARequestThatAStandInDecidesIsNotReportedByAStoreThatIsDown
// checks a single limiter and a stack's layers, with an observer.
func TestARequestThatAStandInDecidesIsNotReportedByAStoreThatIsDown(t *testing.T) {
	db := sql.OpenDB(refused{})
	defer db.Close()
	byStore, byLocal := 0, 0
	single := func(name string) *sqllimit.Limiter {
		l, err := sqllimit.New(db, ratelimit.FixedWindow(ratelimit.PerHour(9)).Named(name), &sqllimit.Options{OnDecision: func(ratelimit.Event[string]) { byStore++ }})
		require.NoError(t, err)
		return l
	}
	same := func(key string) (string, error) { return key, nil }
	observed := ratelimit.By(single("b"), same)
	observed.Observe = func(ratelimit.Event[string]) { byStore++ }
	leased := ratelimit.Must(lease.New[string](single("c"), &lease.Options[string]{MaxBatch: 5, OnDecision: func(ratelimit.Event[string]) { byStore++ }}))
	for name, primary := range map[string]ratelimit.Reserver[string]{
		"single": single("x"), "stack": ratelimit.Must(ratelimit.All(ratelimit.By(single("a"), same), observed)), "lease": leased,
	} {
		t.Run(name, func(t *testing.T) {
			byStore, byLocal = 0, 0
			local := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(9)), &ratelimit.Options[string]{OnDecision: func(ratelimit.Event[string]) { byLocal++ }}))
			l := ratelimit.Must(failover.New[string](primary, local, quietly(failover.Options{Timeout: time.Minute})))
			for range 20 {
				_, err := l.Take(t.Context(), "k", 1)
				require.NoError(t, err)
			}
			_, err := l.Reserve(t.Context(), "k", 1, 0)
			require.NoError(t, err)
			assert.Equal(t, []int{0, 21}, []int{byStore, byLocal})
			assert.GreaterOrEqual(t, l.Stats().Unavailable, uint64(5), "the failures are counted here")
			_, err = primary.Take(t.Context(), "k", 1)
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			assert.NotZero(t, byStore, "a request without a failover is reported by the store")
		})
	}
}

// A stack in memory reports as its limiters do. If its answer is late, neither the stack nor its layers' observers report.
func TestARequestOfAStackInMemoryIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, local := newCounted(t, 100), newCounted(t, 100)
		observed := 0
		layer := ratelimit.By(primary.Keyed, func(key string) (string, error) { return key, nil })
		layer.Observe = func(ratelimit.Event[string]) { observed++ }
		l := ratelimit.Must(failover.New[string](ratelimit.Must(ratelimit.All(layer)), local, quietly(failover.Options{Timeout: 10 * time.Millisecond})))
		for i := range 9 {
			if i == 3 {
				primary.hangs = 50 * time.Millisecond
			}
			key := fmt.Sprint("k", i) // a new key, so that LimitFor is called
			if i%2 == 0 {
				_, err := l.Take(t.Context(), key, 1)
				require.NoError(t, err)
			} else {
				_, err := l.Reserve(t.Context(), key, 1, 0)
				require.NoError(t, err)
			}
			time.Sleep(time.Second)
		}
		assert.Len(t, primary.events, 3)
		assert.Len(t, local.events, 6)
		assert.Equal(t, 3, observed)
	})
}
