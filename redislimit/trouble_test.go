package redislimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// soon is a call's maximum duration with a timeout of 50 ms on a busy machine.
const soon = 4 * time.Second

// promptly makes a call and checks that it ends soon after its timeout.
// Without the timeout, go-redis takes 5 s and more in all of these cases.
func promptly(t *testing.T, call func() error) error {
	t.Helper()
	running := testsize.StartRunning()
	defer running.Stop()
	err := call()
	assert.Less(t, running.Now(), soon)
	return err
}

func taking(l *Limiter) func() error {
	return func() error {
		_, err := l.Take(context.Background(), "k", 1)
		return err
	}
}

func perMinute(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerMinute(n), n) }

// defaults returns a limiter with default options on a client with default options.
func defaults(t *testing.T, client redis.UniversalClient) *Limiter {
	t.Helper()
	l, err := New(client, perMinute(1000), &Options{Name: "defaults"})
	require.NoError(t, err)
	return l
}

func unavailableUnsent(t *testing.T, err error) {
	t.Helper()
	assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
}

func (s *server) pause(t *testing.T) {
	require.NoError(t, s.Pause())
}

func (s *server) resume(t *testing.T) {
	require.NoError(t, s.Resume())
}

// warm opens a connection and loads the scripts into the server, even on a slow machine. A
// denial is an answer, too: a call that timed out may have been charged with the only unit.
func warm(t *testing.T, l *Limiter) {
	t.Helper()
	require.Eventually(t, func() bool { _, err := l.Take(t.Context(), "warm", 1); return err == nil }, 20*time.Second, 10*time.Millisecond)
}

// unanswered pauses a server, and makes a call until its error is that of a call sent
// without an answer. On a busy machine a call may time out unsent. The server stays paused.
func unanswered(t *testing.T, s *server, l *Limiter, call func() error) error {
	t.Helper()
	for range 20 {
		s.pause(t)
		if err := promptly(t, call); errors.Is(err, ratelimit.ErrUnanswered) {
			return err
		}
		s.resume(t)
		warm(t, l)
	}
	t.Fatal("no call was sent")
	return nil
}

func TestAPausedServerDoesNotHoldCallersUp(t *testing.T) {
	s := startServer(t)
	l := defaults(t, s.client())
	warm(t, l)
	var r *ratelimit.Reservation
	require.Eventually(t, func() (ok bool) {
		var err error
		r, err = l.Reserve(t.Context(), "k", 1, 0)
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
	assert.ErrorIs(t, unanswered(t, s, l, taking(l)), ratelimit.ErrUnavailable)
	err := promptly(t, func() error { return r.Settle(0) })
	assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.ErrorIs(t, promptly(t, func() error { return l.Reset(context.Background(), "k") }), ratelimit.ErrUnavailable)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { assert.ErrorIs(t, promptly(t, taking(l)), ratelimit.ErrUnavailable) })
	}
	wg.Wait()
	s.resume(t)
	warm(t, l)
}

func TestTheCallersOwnDeadlineComesFirst(t *testing.T) {
	s := startServer(t)
	l, err := New(s.client(), perMinute(1000), &Options{Name: "own", Timeout: time.Minute})
	require.NoError(t, err)
	warm(t, l)
	err = unanswered(t, s, l, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		_, err := l.Take(ctx, "k", 1)
		return err
	})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.NotErrorIs(t, err, ratelimit.ErrUnavailable, "the caller's own context has ended")
	s.resume(t)
}

func TestAServerThatIsGoneIsUnavailable(t *testing.T) {
	s := startServer(t)
	l := defaults(t, s.client())
	warm(t, l)
	s.kill()
	_ = promptly(t, taking(l)) // this call uses the open connection
	unavailableUnsent(t, promptly(t, taking(l)))
	assert.ErrorIs(t, promptly(t, func() error { return l.Wait(context.Background(), "k", 1) }), ratelimit.ErrUnavailable)
	assert.ErrorIs(t, promptly(t, func() error { return l.Adjust(context.Background(), "k", 1) }), ratelimit.ErrUnavailable)
	assert.False(t, l.Allow("k", 1))
}

func TestAnUnansweredDialEndsInTime(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "192.0.2.1:6379", Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done() // like a SYN without an answer
		return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
	}})
	defer client.Close()
	l := defaults(t, client)
	unavailableUnsent(t, promptly(t, taking(l)))
}

// TestTheErrorOfATimeoutNamesTheOption uses the client's default options. The client then dials a
// refused connection again until after the timeout, and can only report that a context has ended.
func TestTheErrorOfATimeoutNamesTheOption(t *testing.T) {
	refused := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer refused.Close()
	for name, ctx := range map[string]func() (context.Context, context.CancelFunc){
		"a context that never ends": func() (context.Context, context.CancelFunc) { return context.Background(), func() {} },
		"one that may":              func() (context.Context, context.CancelFunc) { return context.WithCancel(context.Background()) },
	} {
		for _, batchSize := range []int{0, 1} {
			l, err := New(refused, perMinute(5).Named("late"), &Options{Batch: batchSize, Timeout: 20 * time.Millisecond})
			require.NoError(t, err)
			ctx, cancel := ctx()
			_, err = l.Take(ctx, "k", 1)
			cancel()
			require.ErrorIs(t, err, ratelimit.ErrUnavailable, name)
			assert.ErrorContains(t, err, "within 20ms (Options.Timeout)", name)
			assert.ErrorIs(t, err, context.DeadlineExceeded, name)
		}
	}
	l, err := New(refused, perMinute(5).Named("late"), &Options{Timeout: time.Second})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = l.Take(ctx, "k", 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.NotContains(t, err.Error(), "Options.Timeout", "it was the caller's own deadline")
}

func TestAFullPoolEndsInTime(t *testing.T) {
	s := startServer(t)
	client := redis.NewClient(&redis.Options{Addr: s.addr, PoolSize: 1})
	defer client.Close()
	l := defaults(t, client)
	warm(t, l)
	blocked := make(chan struct{})
	go func() {
		defer close(blocked)
		client.BLPop(context.Background(), 0, "nothing")
	}()
	require.Eventually(t, func() bool {
		clients, err := s.Do("INFO", "clients")
		return err == nil && strings.Contains(clients, "blocked_clients:1\r\n")
	}, 20*time.Second, time.Millisecond)
	unavailableUnsent(t, promptly(t, taking(l)))
	_, err := s.Do("RPUSH", "nothing", "something")
	require.NoError(t, err)
	<-blocked
}

func TestAClosedClientIsUnavailable(t *testing.T) {
	s := startServer(t)
	client := redis.NewClient(&redis.Options{Addr: s.addr})
	l, err := New(client, perMinute(1000), &Options{Name: "closed", Timeout: 20 * time.Second})
	require.NoError(t, err)
	require.NoError(t, client.Close())
	err = promptly(t, taking(l))
	unavailableUnsent(t, err)
	assert.ErrorIs(t, err, redis.ErrClosed)
}

func TestOutOfMemoryRefusesTheWholeCall(t *testing.T) {
	f := newFixture(t)
	l := f.real(ratelimit.TokenBucket(ratelimit.PerMinute(10), 10))
	require.True(t, l.Allow("k", 4))
	require.NoError(t, f.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	before := f.dump()
	_, err := l.Take(t.Context(), "k", 1)
	unavailableUnsent(t, err)
	_, err = l.Take(t.Context(), "new", 1)
	unavailableUnsent(t, err)
	assert.Equal(t, before, f.dump())
	assert.Equal(t, 6, f.left(l, "k"), "to look needs no memory")
}

func TestAReplicaThatIsReadOnlyIsUnavailable(t *testing.T) {
	f := newFixture(t)
	l := f.real(ratelimit.TokenBucket(ratelimit.PerMinute(10), 10))
	require.True(t, l.Allow("k", 4))
	master := startServer(t)
	host, port, err := net.SplitHostPort(master.addr)
	require.NoError(t, err)
	require.NoError(t, f.client.ReplicaOf(t.Context(), host, port).Err())
	_, err = l.Take(t.Context(), "k", 1)
	unavailableUnsent(t, err)
}

func TestABusyServerIsUnavailable(t *testing.T) {
	f := newFixture(t)
	l := f.real(ratelimit.TokenBucket(ratelimit.PerMinute(10), 10))
	require.True(t, l.Allow("k", 4))
	require.NoError(t, f.client.ConfigSet(t.Context(), "busy-reply-threshold", "1").Err())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.client.Eval(context.Background(), "while true do end", nil)
	}()
	require.Eventually(t, func() bool {
		_, err := l.Take(context.Background(), "k", 1)
		return errors.Is(err, ratelimit.ErrUnavailable) && !errors.Is(err, ratelimit.ErrUnanswered)
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, f.client.ScriptKill(context.Background()).Err())
	<-done
}

func TestAForgottenScriptIsTaughtAgain(t *testing.T) {
	f := newFixture(t)
	l := f.real(ratelimit.FixedWindow(ratelimit.PerDay(1_000_000)))
	require.True(t, l.Allow("k", 1))
	require.NoError(t, f.client.ScriptFlush(t.Context()).Err())
	f.resetStats()
	require.True(t, l.Allow("k", 1))
	stats := f.stats()
	assert.Equal(t, 1, stats["eval"])
	assert.Equal(t, 1, stats["evalsha"])
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := range 20 {
				if i%5 == 0 {
					f.client.ScriptFlush(context.Background())
				}
				assert.True(t, l.Allow("k", 1))
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 1_000_000-2-64*20, f.left(l, "k"), "each was charged once")
}

// Redis 7.4 and Valkey 8 keep at most 500 scripts, unless they are loaded by SCRIPT LOAD, and forget the others.
func TestScriptsOfOthersPushOursOut(t *testing.T) {
	f := newFixture(t)
	l := f.real(ratelimit.FixedWindow(ratelimit.PerDay(1_000_000)))
	for round := range 3 {
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { assert.True(t, l.Allow("k", 1)) })
		}
		pipe := f.client.Pipeline()
		for i := range 600 {
			pipe.Eval(t.Context(), fmt.Sprintf("return %d", i+600*round), nil)
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		wg.Wait()
		assert.True(t, l.Allow("k", 1))
		assert.Equal(t, 1_000_000-17*(round+1), f.left(l, "k"), "each was charged once")
	}
}

// deafProxy passes data on between clients and a server. While it is deaf, it breaks the connection
// instead of passing on a script's answer, a string or an array. Connections can still be made.
type deafProxy struct {
	net.Listener
	deaf atomic.Bool
}

func newDeafProxy(t *testing.T, addr string) *deafProxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &deafProxy{Listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c, addr)
		}
	}()
	return p
}

func (p *deafProxy) serve(c net.Conn, addr string) {
	defer c.Close()
	s, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer s.Close()
	go func() {
		io.Copy(s, c)
		s.Close()
	}()
	b := make([]byte, 4096)
	for {
		n, err := s.Read(b)
		if err != nil || p.deaf.Load() && n > 0 && (b[0] == '$' || b[0] == '*') {
			return
		}
		if _, err := c.Write(b[:n]); err != nil {
			return
		}
	}
}

func TestAnAnswerThatIsLostIsChargedOnce(t *testing.T) {
	f := newFixture(t)
	proxy := newDeafProxy(t, f.server.addr)
	for _, batchSize := range []int{1, 64} {
		client := redis.NewClient(&redis.Options{Addr: proxy.Addr().String(), MaxRetries: 5})
		defer client.Close()
		l, err := New(client, ratelimit.FixedWindow(ratelimit.PerDay(1000)), &Options{Name: fmt.Sprint("lost", batchSize), Timeout: 10 * time.Second, Batch: batchSize})
		require.NoError(t, err)
		require.True(t, l.Allow("k", 1))
		proxy.deaf.Store(true)
		const callers = 20
		var unanswered atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				_, err := l.Take(context.Background(), "k", 1)
				assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
				if errors.Is(err, ratelimit.ErrUnanswered) { // otherwise its connection broke before it was sent
					unanswered.Add(1)
				}
			})
		}
		wg.Wait()
		assert.Positive(t, unanswered.Load())
		proxy.deaf.Store(false)
		direct := f.real(ratelimit.FixedWindow(ratelimit.PerDay(1000)))
		direct.space = l.space
		d, err := direct.Peek(t.Context(), "k", 0)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, d.Remaining, 1000-1-int(unanswered.Load()), "none was charged twice")
	}
}

func TestWaitReportsABookingThatItCouldNotGiveBack(t *testing.T) {
	s := startServer(t)
	limit := ratelimit.TokenBucket(ratelimit.PerHour(1), 1)
	l, err := New(s.client(), limit, &Options{Name: "wait", Timeout: 100 * time.Millisecond})
	require.NoError(t, err)
	patient, err := New(s.client(), limit, &Options{Name: "wait", Timeout: 20 * time.Second})
	require.NoError(t, err)
	booked := func(key string) bool {
		d, err := patient.Peek(t.Context(), key, 1)
		require.NoError(t, err)
		return d.RetryAfter > time.Hour
	}
	warm(t, l)
	var key string
	for try := 0; ; try++ {
		key = fmt.Sprint("k", try)
		require.True(t, patient.Allow(key, 1))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Wait(ctx, key, 1) }()
		for !booked(key) && len(ended) == 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(150 * time.Millisecond) // by then the booking has an answer, or the Wait has failed
		s.pause(t)
		cancel()
		if err = <-ended; errors.Is(err, context.Canceled) {
			break
		}
		s.resume(t)
		require.Less(t, try, 20, "a busy machine may be too late to book, but not each time: %v", err)
	}
	assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
	s.resume(t)
	require.Eventually(t, func() bool { return !booked(key) }, 20*time.Second, 10*time.Millisecond, "it is given back when the server answers again")
}

func TestACancelledWaitGivesBack(t *testing.T) {
	f := newFixture(t)
	l := f.real(ratelimit.TokenBucket(ratelimit.PerHour(10), 10))
	var key string
	for try := 0; ; try++ {
		key = fmt.Sprint("k", try)
		require.True(t, l.Allow(key, 10))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(30*time.Millisecond, cancel)
		err := l.Wait(ctx, key, 5)
		require.ErrorIs(t, err, context.Canceled)
		if !errors.Is(err, ratelimit.ErrUnanswered) {
			break
		}
		require.Less(t, try, 20, "a busy machine may be too late to answer, but not each time: %v", err)
	}
	r, err := l.Reserve(t.Context(), key, 5, time.Hour)
	require.NoError(t, err)
	assert.True(t, r.Allowed, "the next in line has its place")
	assert.InDelta(t, 30, r.Delay.Minutes(), 1)
}

func TestNoCallerIsLostInACrowdOfCancellations(t *testing.T) {
	testsize.Client(t)
	f := newFixture(t)
	crowded(t, f, "ends", time.Second, func(i, n int) (context.Context, context.CancelFunc) {
		if n%4 != 0 {
			return context.WithTimeout(context.Background(), time.Duration((i*7+n*13)%40)*50*time.Microsecond)
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Duration(i%10)*20*time.Microsecond, cancel)
		return ctx, cancel
	})
}

func TestNoCallerIsLostInACrowdOfTimeouts(t *testing.T) {
	testsize.Client(t)
	f := newFixture(t)
	for _, timeout := range []time.Duration{100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
		crowded(t, f, fmt.Sprint("late", timeout.Microseconds()), timeout, func(i, n int) (context.Context, context.CancelFunc) {
			if n%10 == 0 { // some callers have contexts that end
				return context.WithTimeout(context.Background(), time.Duration(i)*50*time.Microsecond)
			}
			return context.Background(), func() {}
		})
	}
}

// crowded makes many callers decide at the same time. Their contexts or the limiter's timeout end early.
func crowded(t *testing.T, f *fixture, name string, timeout time.Duration, contextOf func(i, n int) (context.Context, context.CancelFunc)) {
	t.Helper()
	limit := ratelimit.FixedWindow(ratelimit.PerDay(1_000_000))
	l, err := New(f.client, limit, &Options{Name: name, Timeout: timeout})
	require.NoError(t, err)
	patient, err := New(f.client, limit, &Options{Name: name, Timeout: 20 * time.Second})
	require.NoError(t, err)
	require.True(t, patient.Allow("k", 1))
	before := runtime.NumGoroutine()
	var allowed, unknown atomic.Int64
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			for n := range 20 {
				ctx, cancel := contextOf(i, n)
				d, err := l.Take(ctx, "k", 1)
				cancel()
				switch {
				case d.Allowed:
					allowed.Add(1)
				case errors.Is(err, ratelimit.ErrUnanswered):
					unknown.Add(1)
				default:
					assert.True(t, errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, ratelimit.ErrUnavailable), err)
				}
			}
		})
	}
	wg.Wait()
	spent := int64(1_000_000-1) - int64(f.left(patient, "k"))
	assert.GreaterOrEqual(t, spent, allowed.Load())
	assert.LessOrEqual(t, spent, allowed.Load()+unknown.Load(), "an error that is not ratelimit.ErrUnanswered has charged nothing")
	c := l.store.lane
	require.Eventually(t, func() bool { // by then the last timer has fired
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.batches == 0 && c.isEmpty() && !c.armed
	}, 20*time.Second, time.Millisecond)
	crowd.Gone(t, before+4)
}

func TestEveryCallerOfACrowdIsAnswered(t *testing.T) {
	f := newFixture(t)
	for _, batchSize := range []int{1, 2, 64} {
		l, err := New(f.client, ratelimit.TokenBucket(ratelimit.PerHour(1), 1000), &Options{Name: fmt.Sprint("crowd", batchSize), Timeout: 20 * time.Second, Batch: batchSize})
		require.NoError(t, err)
		var allowed atomic.Int64
		var wg sync.WaitGroup
		for range 128 {
			wg.Go(func() {
				for range 12 {
					d, err := l.Take(context.Background(), "k", 1)
					assert.NoError(t, err)
					if d.Allowed {
						allowed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 1000, allowed.Load())
	}
}
