package redislimit

import (
	"context"

	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// lateConn delays writes, as a network does. So data written shortly before Close arrives, too.
type lateConn struct {
	net.Conn
	delay  func() time.Duration
	queue  chan lateData
	closed chan struct{}
	once   sync.Once
}

type lateData struct {
	at    time.Time
	bytes []byte
}

func newLateConn(c net.Conn, delay func() time.Duration) net.Conn {
	l := &lateConn{Conn: c, delay: delay, queue: make(chan lateData, 10_000), closed: make(chan struct{})}
	go l.deliver()
	return l
}

func (l *lateConn) Write(b []byte) (int, error) {
	select {
	case <-l.closed:
		return 0, net.ErrClosed
	case l.queue <- lateData{time.Now().Add(l.delay()), append([]byte(nil), b...)}:
		return len(b), nil
	}
}

func (l *lateConn) Close() error {
	l.once.Do(func() {
		close(l.closed)
		_ = l.Conn.SetReadDeadline(time.Unix(1, 0))
	})
	return nil
}

func (l *lateConn) deliver() {
	defer l.Conn.Close()
	for {
		var d lateData
		select {
		case d = <-l.queue:
		default:
			select {
			case d = <-l.queue:
			case <-l.closed:
				return
			}
		}
		time.Sleep(time.Until(d.at))
		if _, err := l.Conn.Write(d.bytes); err != nil {
			return
		}
	}
}

// dialLate returns a dialer. Its connections delay their writes.
func dialLate(delay func() time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return newLateConn(c, delay), nil
	}
}

// slotServers are servers of one kind, with clients.
type slotServers struct {
	servers []*redistest.Server
	client  func(dial func(ctx context.Context, network, addr string) (net.Conn, error)) redis.UniversalClient
}

func startSlotServers(t *testing.T, kind string) (s slotServers) {
	switch kind {
	case "single":
		server := startServer(t)
		s.servers = []*redistest.Server{server.Server}
		s.client = func(dial func(context.Context, string, string) (net.Conn, error)) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: server.addr, Dialer: dial})
		}
	case "ring":
		addrs := map[string]string{}
		for _, name := range []string{"x", "y"} {
			server := startServer(t)
			s.servers, addrs[name] = append(s.servers, server.Server), server.addr
		}
		s.client = func(dial func(context.Context, string, string) (net.Conn, error)) redis.UniversalClient {
			return redis.NewRing(&redis.RingOptions{Addrs: addrs, Dialer: dial, HeartbeatFrequency: time.Hour})
		}
	case "cluster":
		c := redistest.StartCluster(t, 3, false)
		s.servers = c.Nodes
		s.client = func(dial func(context.Context, string, string) (net.Conn, error)) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), Dialer: dial})
		}
	}
	return s
}

// Callers give up after at most 20 ms, while the servers stop now and then, or some
// of the requests arrive late. A slot left behind would stay taken for a minute.
func TestCallersThatGiveUpLeaveNoSlots(t *testing.T) {
	lasts := testsize.Of(time.Second, 10*time.Second)
	for _, kind := range []string{"single", "ring", "cluster"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			where := startSlotServers(t, kind)
			for _, timeout := range []time.Duration{50 * time.Millisecond, time.Second} {
				t.Run(fmt.Sprint("stops ", timeout), func(t *testing.T) {
					stop := make(chan struct{})
					var stopping sync.WaitGroup
					stopping.Go(func() {
						for {
							select {
							case <-stop:
								return
							case <-time.After(200 * time.Millisecond):
							}
							for _, s := range where.servers {
								assert.NoError(t, s.Pause())
							}
							time.Sleep(120 * time.Millisecond)
							for _, s := range where.servers {
								assert.NoError(t, s.Resume())
							}
						}
					})
					giveUp(t, where.client(nil), where.client(nil), "stops", timeout, lasts, func() { close(stop); stopping.Wait() })
				})
				t.Run(fmt.Sprint("late ", timeout), func(t *testing.T) {
					late := dialLate(func() time.Duration {
						if rand.IntN(8) == 0 {
							return rand.N(400 * time.Millisecond)
						}
						return rand.N(2 * time.Millisecond)
					})
					giveUp(t, where.client(late), where.client(nil), "late", timeout, lasts, func() {})
				})
			}
		})
	}
}

// giveUp makes callers give up for some time, and checks that they leave no slots behind.
func giveUp(t *testing.T, client, direct redis.UniversalClient, name string, timeout, lasts time.Duration, trouble func()) {
	t.Cleanup(func() { assert.NoError(t, client.Close()); assert.NoError(t, direct.Close()) })
	const limit, keys = 5, 3
	options := &SemaphoreOptions{Name: name + timeout.String(), Hold: time.Minute, Timeout: timeout}
	var all []*Semaphore
	for range 3 {
		s, err := NewSemaphore(client, limit, options)
		require.NoError(t, err)
		all = append(all, s)
	}
	options.Timeout = 10 * time.Second
	look, err := NewSemaphore(direct, limit, options)
	require.NoError(t, err)
	warm := &SemaphoreOptions{Name: "warm", Timeout: 10 * time.Second}
	w, err := NewSemaphore(client, limit, warm)
	require.NoError(t, err)
	_, err = w.TryAcquire(t.Context(), "k", 1)
	require.NoError(t, err)

	var inFlight [keys]atomic.Int64
	var done, failed atomic.Int64
	var callers sync.WaitGroup
	end := time.Now().Add(lasts)
	for i := range 30 {
		callers.Go(func() {
			for time.Now().Before(end) {
				k := rand.IntN(keys)
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(20*time.Millisecond))
				p, err := all[i%3].Acquire(ctx, fmt.Sprint("k", k), 1+i%2)
				cancel()
				if err != nil {
					failed.Add(1)
					continue
				}
				assert.LessOrEqual(t, inFlight[k].Add(int64(1+i%2)), int64(limit))
				time.Sleep(rand.N(3 * time.Millisecond))
				inFlight[k].Add(-int64(1 + i%2))
				_ = p.Release(context.Background()) // an unanswered release is repeated
				done.Add(1)
			}
		})
	}
	callers.Wait()
	trouble()
	t.Logf("%d done, %d gave up", done.Load(), failed.Load())
	assert.Positive(t, failed.Load())
	for k := range keys {
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			stats, err := look.Snapshot(context.Background(), fmt.Sprint("k", k))
			assert.NoError(t, err)
			assert.Zero(t, stats)
		}, sleeps, 10*time.Millisecond)
	}
	time.Sleep(500 * time.Millisecond) // by then the last requests have arrived
	for k := range keys {
		stats, err := look.Snapshot(context.Background(), fmt.Sprint("k", k))
		require.NoError(t, err)
		assert.Zero(t, stats)
	}
}

// Each answer comes later than a reservation lasts, so no caller is served. No slot stays in use.
func TestRoundTripsThatAreLongerThanAReservation(t *testing.T) {
	t.Parallel()
	where := startSlotServers(t, "single")
	var delay atomic.Int64
	client := where.client(dialLate(func() time.Duration { return time.Duration(delay.Load()) }))
	defer client.Close()
	s, err := NewSemaphore(client, 1, &SemaphoreOptions{Name: "far", Timeout: 50 * time.Millisecond, Hold: time.Minute})
	require.NoError(t, err)
	var held *Permit
	require.Eventually(t, func() bool { held, err = s.TryAcquire(t.Context(), "k", 1); return err == nil }, sleeps, time.Millisecond)
	waiting := make(chan error, 1)
	for { // waits until the first call of a waiting caller is answered in time
		ctx, cancel := contextWithCancel(t)
		go func() { _, err := s.Acquire(ctx, "k", 1); waiting <- err }()
		time.Sleep(100 * time.Millisecond)
		if len(waiting) == 0 {
			defer cancel()
			break
		}
		cancel()
		<-waiting
	}
	delay.Store(int64(300 * time.Millisecond))
	_ = held.Release(t.Context())
	assert.ErrorIs(t, <-waiting, ratelimit.ErrUnavailable, "it fails after one second and Timeout")
	delay.Store(0)
	look, err := NewSemaphore(where.client(nil), 1, &SemaphoreOptions{Name: "far", Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stats, err := look.Snapshot(t.Context(), "k")
		return err == nil && stats == SemaphoreStats{}
	}, sleeps, 5*time.Millisecond)
}

func TestAnAnswerThatIsLaterThanHoldIsNoPermit(t *testing.T) {
	t.Parallel()
	where := startSlotServers(t, "single")
	client := where.client(dialLate(func() time.Duration { return 20 * time.Millisecond }))
	defer client.Close()
	s, err := NewSemaphore(client, 1, &SemaphoreOptions{Name: "brief", Timeout: 10 * time.Second, Hold: 5 * time.Millisecond})
	require.NoError(t, err)
	for _, acquire := range []func(context.Context, string, int) (*Permit, error){s.TryAcquire, s.Acquire} {
		p, err := acquire(t.Context(), "k", 1)
		assert.Nil(t, p)
		assert.ErrorIs(t, err, errLate)
		assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
	}
}

// Releases without an answer are repeated, even if they are many.
func TestReleasesAreRepeatedUntilRedisAnswers(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s, err := NewSemaphore(server.client(), maxSlots, &SemaphoreOptions{Name: "slots", Timeout: 100 * time.Millisecond, Hold: time.Hour})
	require.NoError(t, err)
	var all []*Permit
	for len(all) < 1000 {
		if p, err := s.TryAcquire(t.Context(), "k", 2); err == nil {
			all = append(all, p)
		}
	}
	server.pause(t)
	var wg sync.WaitGroup
	for _, p := range all {
		wg.Go(func() { assert.ErrorIs(t, p.Release(t.Context()), ratelimit.ErrUnavailable) })
	}
	wg.Wait()
	server.resume(t)
	require.Eventually(t, func() bool {
		stats, err := s.Snapshot(t.Context(), "k")
		return err == nil && stats == SemaphoreStats{}
	}, sleeps, 5*time.Millisecond)
}

func TestASemaphoreOutOfMemoryServesItsLineAlone(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(1)
	s.silence = 300 * time.Millisecond
	held := f.held(s, 1)
	next, last := f.waiter(s, 1), f.waiter(f.semaphore(1), 1)
	require.NoError(t, f.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := s.TryAcquire(t.Context(), "k", 1)
	unavailableUnsent(t, err)
	_, err = s.Acquire(t.Context(), "new", 1)
	unavailableUnsent(t, err)
	require.NoError(t, held.Extend(t.Context()))
	require.NoError(t, held.Release(t.Context()))
	p := served(t, next, "a caller in line is not served")
	require.NoError(t, p.Release(t.Context()))
	p = served(t, last, "a caller in line of another process is not served")
	lost := make(chan error, 1)
	require.NoError(t, f.client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	go func() { _, err := s.Acquire(t.Context(), "k", 1); lost <- err }()
	require.Eventually(t, func() bool { return f.snapshot(s).Waiting == 1 }, sleeps, time.Millisecond)
	require.NoError(t, f.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.NoError(t, s.Reset(t.Context(), "k"))
	assert.ErrorIs(t, <-lost, ratelimit.ErrUnavailable, "it cannot enter the line again")
	require.ErrorIs(t, p.Release(t.Context()), ErrLost)
	require.NoError(t, f.client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	f.held(s, 1)
}

// A panic in a goroutine of the client would end the process.
func TestARingThatIsClosedUnderWaitersIsAnError(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for i := range 4 {
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.addr}, HeartbeatFrequency: time.Hour})
		s, err := NewSemaphore(ring, 1, &SemaphoreOptions{Name: fmt.Sprint("closed", i), Timeout: 200 * time.Millisecond})
		require.NoError(t, err)
		require.Eventually(t, func() bool { _, err := s.TryAcquire(t.Context(), "k", 1); return err == nil }, sleeps, time.Millisecond)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, err := s.Acquire(t.Context(), "k", 1)
				assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
			})
		}
		time.Sleep(time.Duration(i)*100*time.Millisecond + rand.N(100*time.Millisecond))
		require.NoError(t, ring.Close())
		wg.Wait()
	}
}

// A slot of the cluster moves back and forth, with waiting callers and without. No call fails.
func TestASemaphoreWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false)
	var all []*Semaphore
	for range 3 {
		s, err := NewSemaphore(clusterClient(t, cluster), 2, &SemaphoreOptions{Name: "moves", Timeout: 10 * time.Second})
		require.NoError(t, err)
		all = append(all, s)
	}
	require.Eventually(t, func() bool { _, err := all[0].Snapshot(t.Context(), "k"); return err == nil }, sleeps, 20*time.Millisecond)
	slot, err := cluster.Slot("x{k}")
	require.NoError(t, err)
	at := slot * 3 / redistest.Slots
	for _, callers := range []int{2, 12} {
		var stop atomic.Bool
		var inFlight, done atomic.Int64
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for !stop.Load() {
					p, err := all[i%3].Acquire(t.Context(), "k", 1)
					if !assert.NoError(t, err) {
						return
					}
					assert.LessOrEqual(t, inFlight.Add(1), int64(2))
					time.Sleep(time.Millisecond)
					inFlight.Add(-1)
					assert.NoError(t, p.Release(t.Context()))
					done.Add(1)
				}
			})
		}
		for i := range testsize.Of(3, 12) {
			to := (at + 1) % 3
			during := func() { time.Sleep(50 * time.Millisecond) }
			if i%3 == 2 {
				during = nil
			}
			require.NoError(t, cluster.Move(slot, at, to, during))
			at = to
			time.Sleep(50 * time.Millisecond)
			before := done.Load()
			require.Eventually(t, func() bool { return done.Load() > before+int64(callers) }, sleeps, time.Millisecond, "no caller is served any more")
		}
		stop.Store(true)
		wg.Wait()
		stats, err := all[0].Snapshot(t.Context(), "k")
		require.NoError(t, err)
		assert.Zero(t, stats)
	}
}

// If a semaphore cannot determine its client's servers, it polls.
func TestASemaphoreOnAClientOfAnotherTypePolls(t *testing.T) {
	f := newFixture(t)
	logger, text := logged()
	var all []*Semaphore
	for range 2 {
		s, err := NewSemaphore(struct{ redis.UniversalClient }{f.client}, 1, &SemaphoreOptions{Name: "other", Timeout: 10 * time.Second, Logger: logger})
		require.NoError(t, err)
		all = append(all, s)
	}
	work(t, all, 6, 10)
	assert.Contains(t, text(), errNoServers.Error())
	f.nothingStays(all[0])
}
