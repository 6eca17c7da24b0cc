// Quickstart limits three API clients to 50 units a second each, with bursts
// of 20, and sends them bursts of requests of different costs from several
// goroutines, on real time. It prints what each of them got.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/weir-go/ratelimit"
)

// client is one key and the requests that it sends: in each of three rounds, half
// a second apart, that many requests at once, of that cost each.
type client struct {
	key      string
	requests int
	cost     int
}

// tally is what one client got.
type tally struct {
	mu               sync.Mutex
	admitted, denied int
	last             ratelimit.Decision
}

func main() {
	limiter, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(50), 20), nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	clients := []client{{"alice", 5, 1}, {"bob", 60, 1}, {"carol", 12, 5}}
	tallies := make([]tally, len(clients))
	for round := range 3 {
		if round > 0 {
			time.Sleep(500 * time.Millisecond)
		}
		burst(limiter, clients, tallies)
	}
	report(limiter, clients, tallies)
}

// burst sends one round of every client's requests, each from a goroutine of its own.
func burst(limiter *ratelimit.Keyed[string], clients []client, tallies []tally) {
	var wg sync.WaitGroup
	for i, c := range clients {
		for range c.requests {
			wg.Go(func() { tallies[i].send(limiter, c) })
		}
	}
	wg.Wait()
}

func (t *tally) send(limiter *ratelimit.Keyed[string], c client) {
	d, err := limiter.Take(context.Background(), c.key, c.cost)
	if err != nil {
		fmt.Fprintln(os.Stderr, c.key, err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = d
	if d.Allowed {
		t.admitted++
	} else {
		t.denied++
	}
}

func report(limiter *ratelimit.Keyed[string], clients []client, tallies []tally) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	fmt.Fprintln(w, "client\tcost\tadmitted\tdenied\tleft\tretry after\tresets in\t")
	for i, c := range clients {
		t := &tallies[i]
		d, err := limiter.Peek(c.key, c.cost)
		if err != nil {
			fmt.Fprintln(os.Stderr, c.key, err)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%v\t%v\t\n", c.key, c.cost, t.admitted, t.denied, d.Remaining,
			d.RetryAfter.Round(time.Microsecond), d.ResetAfter.Round(time.Microsecond))
	}
}
