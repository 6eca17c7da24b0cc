// Overload shows what a limit on requests in flight does for a backend that gets more than
// it can serve, and then becomes slower. It simulates the backend, prints how each limit
// did with several backends, and draws what happens to one over time. Run it in the module's root:
//
//	go run ./examples/overload        prints the table, writes docs/overload.svg
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
	"github.com/weir-go/ratelimit/internal/overload"
)

func main() {
	out := flag.String("o", "docs/overload.svg", "file to write")
	seed := flag.Uint64("seed", 1, "of the random arrivals and service times")
	flag.Parse()
	if err := run(os.Stdout, *out, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, out string, seed uint64) error {
	if err := table(w, seed); err != nil {
		return err
	}
	return os.WriteFile(out, []byte(picture(seed)), 0o666)
}

// backends are what the table is about: each with its load and with what happens to it.
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

// table prints a Markdown table that is aligned for the terminal as well.
func table(w io.Writer, seed uint64) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(t, "| backend\t limit\t worst latency, in service times\t worst goodput, of the best fixed limit's\t")
	fmt.Fprintln(t, "|---\t ---\t ---\t ---\t")
	for _, c := range backends() {
		c.Seed = seed
		for _, l := range []struct {
			name string
			gate overload.Gated
		}{
			{"none", &overload.Fixed{Limit: c.Bound}},
			{"AIMD", overload.NewLimiter(c.Bound, inflight.AIMD(inflight.Timeout(5*c.Service/2)))},
			{"Vegas", overload.NewLimiter(c.Bound, inflight.Vegas())},
			{"Gradient", overload.NewLimiter(c.Bound, inflight.Gradient())},
		} {
			latency, goodput := 0.0, math.Inf(1)
			for _, v := range overload.Play(c, l.gate) {
				latency, goodput = max(latency, v.Latency), min(goodput, v.Goodput)
			}
			name := fmt.Sprintf("%d servers × %v, load %.1f, %s", c.Servers, c.Service, c.Load, c.Event)
			fmt.Fprintf(t, "| %s\t %s\t %.2f\t %.2f\t\n", name, l.name, latency, goodput)
		}
	}
	return t.Flush()
}
