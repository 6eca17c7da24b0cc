// Overload shows what a limit does to requests in flight. The backend gets more requests
// than it can serve, and then becomes slower. The program simulates it, and prints each
// limit's results with several backends. With -o it also draws one of them over time:
//
//	go run ./examples/overload
//	go run ./examples/overload -o docs/overload.svg
//
// With -tenants it runs a backend with many tenants, pages and background jobs behind
// one adaptive limit, in real time. Each second it prints the figures an operator sees:
//
//	go run ./examples/overload -tenants
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"text/tabwriter"
	"time"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/overload"
)

func main() {
	out := flag.String("o", "", "`file` for a picture; none if empty")
	many := flag.Bool("tenants", false, "run a backend with tenants and priorities, for 24 seconds")
	seed := flag.Uint64("seed", 1, "of the random arrivals and service times")
	flag.Parse()
	do := func() error { return run(os.Stdout, *out, *seed) }
	if *many {
		do = func() error { return tenants(os.Stdout, 8, *seed) }
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, out string, seed uint64) error {
	if err := table(w, seed); err != nil || out == "" {
		return err
	}
	return os.WriteFile(out, []byte(picture(seed)), 0o666)
}

// backends are the table's rows, each with a load and an incident.
func backends() []overload.Cell {
	of := func(servers int, service time.Duration, load float64, event string) overload.Cell {
		return overload.Cell{
			Phase: overload.Phase{Servers: servers, Service: service, Spread: overload.Exponential, Load: load},
			Bound: 20 * servers, Event: event,
		}
	}
	return []overload.Cell{
		of(1, 50*time.Millisecond, 1.5, "none"),
		of(20, 50*time.Millisecond, 1.5, "none"),
		of(100, time.Second, 1.5, "none"),
		of(20, 50*time.Millisecond, 1.5, "latency × 10"),
		of(20, 50*time.Millisecond, 1.5, "pauses"),
		of(20, 50*time.Millisecond, 0.5, "flood"),
	}
}

// table prints a table for the terminal. It leaves out the time before a limit has settled.
func table(w io.Writer, seed uint64) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "backend\tlimit\tworst latency, in service times\tworst goodput, of the best fixed limit's")
	for _, c := range backends() {
		c.Seed = seed
		for _, l := range []struct {
			name string
			gate overload.Gated
		}{
			{"none", &overload.Fixed{Limit: c.Bound}},
			{"Learn", overload.NewLimiter(c.Bound, inflight.Learn(nil))},
		} {
			latency, goodput := 0.0, math.Inf(1)
			for _, v := range overload.Play(c, l.gate) {
				latency, goodput = max(latency, v.Latency), min(goodput, v.Goodput)
			}
			name := fmt.Sprintf("%d servers × %v, load %.1f, %s", c.Servers, c.Service, c.Load, c.Event)
			fmt.Fprintf(t, "%s\t%s\t%.2f\t%.2f\n", name, l.name, latency, goodput)
		}
	}
	return t.Flush()
}
