package redislimit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// randomFor is the time that each of the random runs takes:
//
//	go test -race -run Random -random 2m -timeout 0
var randomFor = flag.Duration("random", 0, "how long each random run takes; 0 means an eighth of a second, or a second at full size")

func randomDuration() time.Duration {
	if *randomFor > 0 {
		return *randomFor
	}
	return testsize.Of(time.Second/8, time.Second)
}

// moodyProxy passes data on between clients and a server. It pauses at random in
// both directions, and sometimes breaks a connection in the middle of a message.
type moodyProxy struct {
	net.Listener
	addr  string
	pause time.Duration // the maximum pause

	mu    sync.Mutex
	conns []net.Conn
}

// hangUp closes all connections. go-redis does not close a connection if the caller leaves while the connection is made.
func (p *moodyProxy) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

func newMoodyProxy(t testing.TB, addr string, pause time.Duration) *moodyProxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &moodyProxy{Listener: l, addr: addr, pause: pause}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, c)
			p.mu.Unlock()
			go p.serve(c)
		}
	}()
	return p
}

func (p *moodyProxy) serve(c net.Conn) {
	s, err := net.Dial("tcp", p.addr)
	if err != nil {
		c.Close()
		return
	}
	go p.copy(s, c)
	p.copy(c, s)
}

func (p *moodyProxy) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		switch rand.IntN(12) {
		case 0, 1, 2:
			time.Sleep(rand.N(p.pause))
		case 3:
			if rand.IntN(40) == 0 {
				_, _ = to.Write(b[:rand.IntN(n+1)])
				return
			}
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// randomClients returns a client of each type. All reach one server through a proxy.
func randomClients(t *testing.T, s *server, proxy *moodyProxy) map[string]redis.UniversalClient {
	addr := proxy.Addr().String()
	direct := func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", addr) }
	clients := map[string]redis.UniversalClient{
		"plain":   redis.NewClient(&redis.Options{Addr: addr, PoolSize: 5}),
		"ring":    redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}, PoolSize: 5}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, PoolSize: 5, Dialer: direct}),
	}
	t.Cleanup(func() {
		for _, c := range clients {
			require.NoError(t, c.Close())
		}
	})
	return clients
}

// received holds the results received by one key's callers.
type received struct {
	mu                      sync.Mutex
	cost                    int
	calls, allowed, perhaps int
}

// Each key has its own cost. If the spending is not a multiple of this cost, a charge was
// meant for another key. If the spending exceeds the calls' results, a charge has no caller.
func TestRandomTimeoutsChargeEachCallerItsOwn(t *testing.T) {
	testsize.Client(t)
	t.Parallel()
	s := startSole(t)
	proxy := newMoodyProxy(t, s.addr, 8*time.Millisecond)
	limit := ratelimit.FixedWindow(ratelimit.PerDay(math.MaxInt32)) // nothing is regained during the test
	for kind, client := range randomClients(t, s, proxy) {
		for _, timeout := range []time.Duration{3 * time.Millisecond, 15 * time.Millisecond, -1} {
			t.Run(fmt.Sprintf("%s %v", kind, timeout), func(t *testing.T) {
				name := fmt.Sprintf("%s%d", kind, timeout)
				l, err := New(client, limit, &Options{Name: name, Timeout: timeout})
				require.NoError(t, err)
				stack, err := ratelimit.All(ratelimit.By(l, identity))
				require.NoError(t, err)
				patient, err := New(s.client(), limit, &Options{Name: name, Timeout: 20 * time.Second})
				require.NoError(t, err)
				all := randomCalls(l, stack)
				time.Sleep(100 * time.Millisecond) // by then late messages have arrived
				for i, k := range all {
					d, err := patient.Peek(t.Context(), strconv.Itoa(i), 0)
					require.NoError(t, err)
					spent := math.MaxInt32 - d.Remaining
					assert.Zero(t, spent%k.cost, "key %d of cost %d has spent %d", i, k.cost, spent)
					assert.GreaterOrEqual(t, spent, k.allowed*k.cost, "key %d", i)
					assert.LessOrEqual(t, spent, (k.allowed+k.perhaps)*k.cost,
						"key %d of cost %d: of %d calls %d were allowed, %d perhaps", i, k.cost, k.calls, k.allowed, k.perhaps)
				}
			})
		}
	}
}

func randomCalls(l *Limiter, stack *ratelimit.Layered[string]) []*received {
	var all []*received
	primes := []int{3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59}
	for _, p := range primes {
		all = append(all, &received{cost: p})
	}
	end := time.Now().Add(randomDuration())
	var wg sync.WaitGroup
	for g := range 48 {
		rng := rand.New(rand.NewPCG(uint64(g), uint64(end.UnixNano())))
		wg.Go(func() {
			for time.Now().Before(end) {
				randomCall(rng, l, stack, all)
			}
		})
	}
	wg.Wait()
	return all
}

func randomCall(rng *rand.Rand, l *Limiter, stack *ratelimit.Layered[string], all []*received) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	switch rng.IntN(4) {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(10000))*time.Microsecond)
	case 1:
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(time.Duration(rng.IntN(10000))*time.Microsecond, cancel)
	}
	defer cancel()
	i := rng.IntN(len(all))
	k, key := all[i], strconv.Itoa(i)
	var d ratelimit.Decision
	var err error
	if rng.IntN(3) == 0 {
		d, err = l.Take(ctx, key, k.cost)
	} else {
		d, err = stack.Take(ctx, key, k.cost)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	switch {
	case d.Allowed:
		k.allowed++
	case errors.Is(err, ratelimit.ErrUnanswered):
		k.perhaps++
	}
}
