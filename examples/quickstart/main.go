// Quickstart limits three API clients to 50 units a second each, with bursts of 20. Several
// goroutines send requests of different costs, in real time. It prints each client's admissions.
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

const (
	rounds = 3
	pause  = 500 * time.Millisecond
)

// client is one key and its requests. In each round it sends some requests at once, all with the same cost.
type client struct {
	key      string
	requests int
	cost     int
}

// tally counts one client's admissions.
type tally struct {
	mu               sync.Mutex
	admitted, denied int
	last             ratelimit.Decision
}

func main() {
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(50), 20)
	limiter, err := ratelimit.New[string](limit, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	clients := []client{{"alice", 5, 1}, {"bob", 60, 1}, {"carol", 12, 5}}
	explain(limit, clients)
	tallies := make([]tally, len(clients))
	for round := range rounds {
		if round > 0 {
			time.Sleep(pause)
		}
		burst(limiter, clients, tallies)
	}
	report(limiter, clients, tallies)
}

// explain prints the rule that the figures follow.
func explain(limit ratelimit.Limit, clients []client) {
	fmt.Printf("limit of each client: %v\n", limit)
	fmt.Printf("It may spend %d units at once, and regains %d a second.\n\n", limit.Burst, limit.Rate.Units)
	fmt.Printf("%d bursts, %v apart. In each, ", rounds, pause)
	for i, c := range clients {
		if i > 0 {
			fmt.Print(", ")
		}
		fmt.Printf("%s sends %d requests of cost %d", c.key, c.requests, c.cost)
	}
	fmt.Printf(".\nA client regains %.0f units between two bursts, so each burst finds %d units.\n\n",
		float64(limit.Rate.Units)*pause.Seconds(), limit.Burst)
}

// burst sends each client's requests of one round, each from its own goroutine.
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
		d, err := limiter.Peek(context.Background(), c.key, c.cost)
		if err != nil {
			fmt.Fprintln(os.Stderr, c.key, err)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%v\t%v\t\n", c.key, c.cost, t.admitted, t.denied, d.Remaining,
			d.RetryAfter.Round(time.Microsecond), d.ResetAfter.Round(time.Microsecond))
	}
}
