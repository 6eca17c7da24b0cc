package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/inflight"
)

// client is a tenant's pages or its background jobs.
type client struct {
	tenant string
	page   bool
}

// clients are the table's columns.
var clients = []client{{"acme", true}, {"beta", true}, {"acme", false}, {"beta", false}}

const (
	servers  = 20
	service  = 50 * time.Millisecond // on average
	patience = time.Second           // how long a client waits
	second   = time.Second
)

// weights are the tenants' shares in pages and jobs.
var weights = map[string]int{"acme": 3, "beta": 1}

// newTenants returns one adaptive limit for one backend, with shares for tenants. Pages have precedence over jobs.
func newTenants() (*inflight.Limiter[client], error) {
	return inflight.New(200, &inflight.Options[client]{
		Total: 200, Shared: inflight.Learn(nil), MaxQueue: 50, MaxWaiting: 120,
		Weight: func(c client) int { return weights[c.tenant] },
		Priority: func(c client) int {
			if c.page {
				return 1
			}
			return 0
		},
	})
}

// site is a backend and its clients. It runs in real time, or in a test, in the time of a bubble.
type site struct {
	limit *inflight.Limiter[client]
	rng   *rand.Rand
	idle  chan struct{} // the idle servers
	wg    sync.WaitGroup

	mu     sync.Mutex // guards the fields below and rng
	served map[client]int
	spent  time.Duration // from the first try of served pages to their answers
	pages  int
}

// random returns a random time with the given mean.
func (s *site) random(mean time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.rng.ExpFloat64() * float64(mean))
}

// request makes one request. It may get no permit, and its answer may be too late.
func (s *site) request(c client) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	start := time.Now()
	permit, err := s.limit.Acquire(ctx, c, 1)
	if err != nil {
		return // a server would answer 503, with Stats.Wait as Retry-After
	}
	outcome := inflight.Cancelled
	defer func() { permit.Done(outcome) }()
	select {
	case <-s.idle:
	case <-ctx.Done():
		return
	}
	time.Sleep(s.random(service))
	s.idle <- struct{}{}
	if ctx.Err() != nil {
		return
	}
	outcome = inflight.Success
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served[c]++
	if c.page {
		s.pages++
		s.spent += time.Since(start)
	}
}

// send sends perSecond requests a second, on average, until the context ends. It does not wait for answers.
func (s *site) send(ctx context.Context, c client, perSecond int) {
	for next := time.Now(); ctx.Err() == nil; {
		next = next.Add(s.random(second / time.Duration(perSecond)))
		time.Sleep(time.Until(next))
		s.wg.Go(func() { s.request(c) })
	}
}

// row prints an operator's figures for the last second.
func (s *site) row(w io.Writer, at int, up int, before, now uint64) {
	t := s.limit.Totals()
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(w, "%4d %8d %6d %7d %7d %6d", at, up, t.Limit, t.InFlight, t.Queued, now-before)
	for _, c := range clients {
		fmt.Fprintf(w, " %11d", s.served[c])
	}
	fmt.Fprintf(w, " %9d ms\n", (s.spent / time.Duration(max(1, s.pages))).Milliseconds())
	clear(s.served)
	s.spent, s.pages = 0, 0
}

// tenants runs the site in three parts of the given length. In the second part, half its servers are down.
func tenants(w io.Writer, seconds int, seed uint64) error {
	limit, err := newTenants()
	if err != nil {
		return err
	}
	s := &site{limit: limit, rng: rand.New(rand.NewPCG(seed, 1)), idle: make(chan struct{}, servers), served: map[client]int{}}
	for range servers {
		s.idle <- struct{}{}
	}
	ctx, stop := context.WithCancel(context.Background())
	for _, c := range clients {
		s.wg.Go(func() { s.send(ctx, c, 150) })
	}
	fmt.Fprintln(w, "time  servers  limit  flight  queued   shed  acme pages  beta pages   acme jobs   beta jobs   pages take")
	shed := uint64(0)
	for at := range 3 * seconds {
		up := servers
		if at/seconds == 1 {
			up = servers / 2
		}
		switch at {
		case seconds:
			for range servers / 2 {
				<-s.idle
			}
		case 2 * seconds:
			for range servers / 2 {
				s.idle <- struct{}{}
			}
		}
		time.Sleep(second)
		now := limit.Totals().Shed
		s.row(w, at+1, up, shed, now)
		shed = now
	}
	stop()
	s.wg.Wait()
	return nil
}
