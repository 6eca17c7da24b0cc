// Overload shows what a limit on requests in flight does for a backend that gets more than
// it can serve, and then becomes slower. It simulates the backend, prints how each limit
// did in several scenarios, and draws one of them. Run it in the module's root:
//
//	go run ./examples/overload        prints the table, writes docs/overload.svg
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

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

// table prints a Markdown table that is aligned for the terminal as well.
func table(w io.Writer, seed uint64) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(t, "| scenario\t limit\t goodput/s\t of the best fixed\t p99\t × the best fixed\t windows to recover\t")
	fmt.Fprintln(t, "|---\t ---\t ---\t ---\t ---\t ---\t ---\t")
	for _, sc := range overload.Scenarios() {
		for _, r := range overload.Compare(sc, seed) {
			fmt.Fprintf(t, "| %s\t %s\t %.0f\t %.2f\t %v\t %.2f\t %s\t\n",
				r.Scenario, r.Limit, r.Goodput, r.Share, r.P99.Round(time.Millisecond), r.Ratio, recovery(r))
		}
	}
	return t.Flush()
}

// recovery is a number of windows, for limits that have any.
func recovery(r overload.Row) string {
	switch {
	case r.Limit == "none", r.Limit == "best fixed":
		return ""
	case r.Recovery < 0:
		return "never"
	}
	return fmt.Sprint(r.Recovery)
}
