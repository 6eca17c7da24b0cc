package redislimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// everyClient returns a client of each type, all on one server.
func everyClient(t *testing.T, addr string) map[string]redis.UniversalClient {
	dial := func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", addr) }
	clients := map[string]redis.UniversalClient{
		"plain":   redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute}),
		"ring":    redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}, ReadTimeout: time.Minute}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, Dialer: dial, ReadTimeout: time.Minute}),
	}
	t.Cleanup(func() {
		for _, c := range clients {
			require.NoError(t, c.Close())
		}
	})
	return clients
}

// startSole starts the only server of a cluster.
func startSole(t *testing.T) *server {
	s := startServer(t, "--cluster-enabled", "yes")
	require.NoError(t, s.client().ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	warm(t, defaultsFor(t, s)) // it takes some time until the server finds the cluster complete
	return s
}

func TestACancelledContextEndsACallAtOnce(t *testing.T) {
	t.Parallel()
	s := startSole(t)
	for kind, client := range everyClient(t, s.addr) {
		for _, timeout := range []time.Duration{time.Minute, -1} {
			for _, batchSize := range []int{1, 8} {
				t.Run(fmt.Sprintf("%s, timeout %v, batch %d", kind, timeout, batchSize), func(t *testing.T) {
					l, err := New(client, perMinute(1000), &Options{Name: "cancelled", Timeout: timeout, Batch: batchSize})
					require.NoError(t, err)
					warm(t, l)
					stack, err := ratelimit.All(ratelimit.By(l, identity))
					require.NoError(t, err)
					s.pause(t)
					defer s.resume(t)
					ctx, cancel := context.WithCancel(t.Context())
					var calls []func() error
					for range 5 { // alone, leading a batch, in flight and in the queue
						calls = append(calls,
							func() error { _, err := l.Take(ctx, "k", 1); return err },
							func() error { _, err := l.Peek(ctx, "k", 1); return err },
							func() error { _, err := l.Reserve(ctx, "k", 1, time.Hour); return err },
							func() error { _, err := stack.Take(ctx, "k", 1); return err },
							func() error { return l.Wait(ctx, "k", 1) },
							func() error { return stack.Wait(ctx, "k", 1) },
							func() error { return l.Adjust(ctx, "k", 1) },
							func() error { return l.Reset(ctx, "k") })
					}
					var wg sync.WaitGroup
					for _, call := range calls {
						wg.Go(func() {
							err := call()
							assert.ErrorIs(t, err, context.Canceled)
							assert.NotErrorIs(t, err, ratelimit.ErrUnavailable, "it is the caller's own end")
						})
					}
					time.Sleep(20 * time.Millisecond)
					running := testsize.StartRunning()
					defer running.Stop()
					cancel()
					wg.Wait()
					assert.Less(t, running.Now(), soon)
				})
			}
		}
	}
}

// If the caller leaves before its call is sent, the call is never sent, and has certainly charged nothing.
func TestACallThatIsNotSentInTimeIsNeverSent(t *testing.T) {
	t.Parallel()
	s := startSole(t)
	direct := defaultsFor(t, s)
	addr := newSlowProxy(t, s.addr, 150*time.Millisecond).Addr().String()
	var all sync.WaitGroup
	for _, timeout := range []time.Duration{30 * time.Millisecond, -1} {
		for _, batchSize := range []int{1, 8} {
			for kind, client := range everyClient(t, addr) {
				l, err := New(client, perMinute(10), &Options{Name: "same", Timeout: timeout, Batch: batchSize})
				require.NoError(t, err)
				all.Go(func() { notSentInTime(t, l, direct, fmt.Sprintf("%s, timeout %v, batch %d", kind, timeout, batchSize)) })
			}
		}
	}
	all.Wait()
}

func notSentInTime(t *testing.T, l, direct *Limiter, key string) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	var charged atomic.Int64 // counts the calls that may have been charged
	var callers sync.WaitGroup
	for range 5 {
		callers.Go(func() {
			if _, err := l.Take(ctx, key, 1); err == nil || errors.Is(err, ratelimit.ErrUnanswered) {
				charged.Add(1)
			}
		})
	}
	callers.Wait()
	time.Sleep(400 * time.Millisecond) // the connections are ready by now
	d, err := direct.Peek(t.Context(), key, 0)
	if assert.NoError(t, err) {
		assert.LessOrEqual(t, d.Limit.Capacity()-d.Remaining, int(charged.Load()), key)
	}
}

// newSlowProxy delays each connection's first answer, the reply to HELLO, and passes everything else on at once.
func newSlowProxy(t *testing.T, addr string, delay time.Duration) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				s, err := net.Dial("tcp", addr)
				if err != nil {
					c.Close()
					return
				}
				go relay(s, c, 0)
				relay(c, s, delay)
			}()
		}
	}()
	return l
}

// relay copies one connection's data to another. It delays the first part.
func relay(to, from net.Conn, delay time.Duration) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		time.Sleep(delay)
		delay = 0
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func TestAServerThatCannotBeDialledHasChargedNothing(t *testing.T) {
	for kind, client := range everyClient(t, "127.0.0.1:1") {
		for _, timeout := range []time.Duration{30 * time.Millisecond, -1} {
			t.Run(fmt.Sprintf("%s %v", kind, timeout), func(t *testing.T) {
				l, err := New(client, perMinute(10), &Options{Name: "gone", Timeout: timeout})
				require.NoError(t, err)
				stack, err := ratelimit.All(ratelimit.By(l, identity))
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				calls := []func(context.Context) error{
					func(ctx context.Context) error { _, err := l.Take(ctx, "k", 1); return err },
					func(ctx context.Context) error { _, err := stack.Take(ctx, "k", 1); return err },
					func(ctx context.Context) error { return l.Adjust(ctx, "k", 1) },
					func(ctx context.Context) error { return l.Reset(ctx, "k") },
				}
				for _, call := range calls {
					err := call(ctx)
					require.Error(t, err)
					assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
					if timeout > 0 {
						unavailableUnsent(t, call(context.Background()))
					}
				}
			})
		}
	}
}

func TestLeavingAQueueDoesNotDependOnItsLength(t *testing.T) {
	testsize.Alone(t)
	const callers = 200_000
	l := newLane(nil, 8, true)
	l.batches = maxBatches
	calls := make([]*call, callers)
	for i := range calls {
		calls[i] = &call{}
		l.enqueue(calls[i])
	}
	begin := time.Now()
	for i := range calls {
		left, sent := l.leave(calls[(i*7919)%callers])
		require.True(t, left)
		require.False(t, sent)
	}
	assert.Less(t, time.Since(begin), 5*time.Second, "by a search it would be a minute")
	assert.True(t, l.isEmpty())
}

// isEmpty reports whether no caller waits.
func (l *lane) isEmpty() bool {
	return l.first == nil && l.last == nil && l.unsent == nil && l.queued == 0
}

// A lane's calls stay in order when callers leave it, and only waiting calls are sent.
func TestALaneKeepsItsOrder(t *testing.T) {
	l := newLane(nil, 3, true)
	var calls []*call
	for range 10 {
		calls = append(calls, &call{})
		l.enqueue(calls[len(calls)-1])
	}
	for _, i := range []int{0, 4, 9} {
		l.leave(calls[i])
	}
	first := l.take()
	assert.Equal(t, []*call{calls[1], calls[2], calls[3]}, first.calls)
	first.staying = 3
	l.leave(calls[2]) // a call of the batch
	assert.Equal(t, 2, first.staying)
	l.leave(calls[5]) // the first waiting call
	assert.Equal(t, []*call{calls[6], calls[7], calls[8]}, l.take().calls)
	assert.Zero(t, l.queued)
	assert.Nil(t, l.unsent)
	for _, i := range []int{6, 1, 8, 3, 7} {
		l.leave(calls[i])
	}
	assert.True(t, l.isEmpty())
}

// counting is a hook that counts calls and pipelines.
type counting struct {
	redis.Hook
	calls, pipelines atomic.Int64
}

func (h *counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.calls.Add(1)
		return next(ctx, cmd)
	}
}

func (h *counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		_ = fmt.Sprint(cmds) // like a tracer, formats the commands without sending them
		h.pipelines.Add(1)
		return next(ctx, cmds)
	}
}

func TestHooksRunForCalls(t *testing.T) {
	s := startServer(t)
	for _, heeds := range []bool{false, true} {
		client := redis.NewClient(&redis.Options{Addr: s.addr, ContextTimeoutEnabled: heeds})
		defer client.Close()
		var own, given counting
		client.AddHook(&own)
		l, err := New(client, perMinute(1000), &Options{Name: "hooks", Timeout: 20 * time.Second, Hooks: []redis.Hook{&given}})
		require.NoError(t, err)
		stack, err := ratelimit.All(ratelimit.By(l, identity))
		require.NoError(t, err)
		require.True(t, l.Allow("k", 1))
		require.True(t, stack.Allow("k", 1))
		seen := &given
		if heeds {
			seen = &own
		}
		assert.GreaterOrEqual(t, seen.calls.Load(), int64(2))
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() { assert.True(t, l.Allow("k", 1)) })
		}
		wg.Wait()
		assert.Positive(t, seen.pipelines.Load())
		assert.Equal(t, heeds, own.calls.Load()+own.pipelines.Load() > 0)
		assert.Equal(t, !heeds, given.calls.Load()+given.pipelines.Load() > 0)
	}
}

// A client that heeds deadlines is used as it is. Its calls are bounded nevertheless.
func TestAClientThatHeedsDeadlinesIsBounded(t *testing.T) {
	s := startServer(t)
	client := redis.NewClient(&redis.Options{Addr: s.addr, ContextTimeoutEnabled: true})
	defer client.Close()
	l := defaults(t, client)
	warm(t, l)
	assert.ErrorIs(t, unanswered(t, s, l, taking(l)), ratelimit.ErrUnavailable)
	s.resume(t)
}

// A caller takes its batch back when it leaves, but only if no other caller waits for the batch.
func TestACallerThatLeavesTakesNothingFromTheOthers(t *testing.T) {
	shared := &batch{staying: 1}
	assert.True(t, shared.mayArrive())
	assert.True(t, shared.write(), "somebody waits for it")
	deserted := new(batch)
	assert.False(t, deserted.mayArrive())
	assert.False(t, deserted.write(), "nobody does")
}

// On a cluster, decisions share a call only if their keys share a slot.
// Otherwise the server would refuse them together, and they would be sent again.
func TestDecisionsOfOneSlotShareACall(t *testing.T) {
	b := new(batch)
	for _, key := range []string{"x{a}", "x{b}", "y{a}"} {
		b.calls = append(b.calls, &call{script: current.one[kindToken].take, keys: []string{key}, payload: make([]byte, headSize+chargeSize)})
	}
	sends := gather(b, shareSlot)
	require.Len(t, sends, 2)
	assert.Equal(t, []string{"x{a}", "y{a}"}, sends[0].keys)
	assert.Equal(t, []string{"x{b}"}, sends[1].keys)
	assert.Len(t, gather(b, shareAll), 1)
}

// silentConn is a connection to a server that may fall silent. After a write during the silence it passes no answers on.
type silentConn struct {
	net.Conn
	silent     *atomic.Bool
	unanswered chan<- struct{} // receives a value for each write without an answer
	end        <-chan struct{}
	dead       atomic.Bool
}

func (c *silentConn) Write(b []byte) (int, error) {
	if c.silent.Load() && !c.dead.Swap(true) {
		c.unanswered <- struct{}{}
	}
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *silentConn) Read(b []byte) (int, error) {
	if c.dead.Load() {
		<-c.end
		return 0, net.ErrClosed
	}
	return c.Conn.Read(b)
}

// If a client does not heed deadlines, calls go on after all their callers have left. Later calls are sent nevertheless.
func TestCallsThatAllHaveLeftHoldUpNoOther(t *testing.T) {
	s := startServer(t)
	var silent atomic.Bool
	unanswered := make(chan struct{}, maxBatches)
	end := make(chan struct{})
	client := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": s.addr}, HeartbeatFrequency: time.Hour, MaxRetries: -1, ReadTimeout: time.Hour,
		Dialer: func(_ context.Context, network, addr string) (net.Conn, error) {
			conn, err := net.Dial(network, addr)
			return &silentConn{Conn: conn, silent: &silent, unanswered: unanswered, end: end}, err
		},
	})
	defer client.Close()
	defer close(end)
	l, err := New(client, perMinute(1000), &Options{Name: "left", Timeout: time.Minute})
	require.NoError(t, err)
	warm(t, l)
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	silent.Store(true)
	for range maxBatches {
		wg.Go(func() {
			_, err := l.Take(ctx, "k", 1)
			assert.ErrorIs(t, err, context.Canceled)
		})
		<-unanswered
	}
	silent.Store(false)
	wg.Go(func() {
		d, err := l.Take(t.Context(), "k", 1)
		assert.NoError(t, err)
		assert.True(t, d.Allowed)
	})
	leave()
	wg.Wait()
}
