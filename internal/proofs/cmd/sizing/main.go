// Sizing measures the figures in docs/sizing.md: each key's memory, each core's decisions,
// Redis's memory and processor time, and single decisions' latency. Run it in proofs:
//
//	go run ./cmd/sizing                  all tables, as Markdown: some minutes
//	go run ./cmd/sizing -only latency    one of memory, cores, redis, latency
//
// It starts redis-server, or the program in REDIS_SERVER. All figures except memory are medians of rounds.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// settings has the measurement's size.
type settings struct {
	keys   int           // keys in a large table
	rounds int           // rounds per median
	per    time.Duration // how long one round of a row takes
}

var tables = []struct {
	name  string
	print func(context.Context, io.Writer, settings) error
}{
	{"memory", memory},
	{"cores", cores},
	{"redis", onRedis},
	{"latency", latency},
}

func main() {
	only := flag.String("only", "", "the one table to print: memory, cores, redis or latency")
	var s settings
	flag.IntVar(&s.keys, "keys", 1_000_000, "keys of a large table")
	flag.IntVar(&s.rounds, "count", 5, "rounds, of which medians are taken")
	flag.DurationVar(&s.per, "for", time.Second, "how long one row is measured in one round")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *only, s); err != nil {
		fmt.Fprintln(os.Stderr, "sizing:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, only string, s settings) error {
	if s.keys < 1 || s.rounds < 1 || s.per <= 0 {
		return fmt.Errorf("keys %d, count %d and for %v must be above zero", s.keys, s.rounds, s.per)
	}
	printed := false
	for _, t := range tables {
		if only != "" && only != t.name {
			continue
		}
		printed = true
		if err := t.print(ctx, out, s); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	if !printed {
		return fmt.Errorf("there is no table %q", only)
	}
	fmt.Fprintf(out, "%s, %d cores, %s%s\n", runtime.Version(), runtime.NumCPU(), time.Now().Format(time.DateOnly), load())
	return nil
}

// load returns the machine's load, if it is known.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return ", load " + strings.Join(strings.Fields(string(text))[:1], "")
}

// table prints a table in Markdown.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(out io.Writer) {
	line := func(cells []string) { fmt.Fprintln(out, "| "+strings.Join(cells, " | ")+" |") }
	line(t.head)
	rule := make([]string, len(t.head))
	for i := range rule {
		if rule[i] = "---:"; i == 0 {
			rule[i] = "---"
		}
	}
	fmt.Fprintln(out, "|"+strings.Join(rule, "|")+"|")
	for _, row := range t.rows {
		line(row)
	}
	fmt.Fprintln(out)
}

func median[T int | int64 | float64 | time.Duration](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

// count formats a large number, such as 5.6 million.
func count(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.1f million", n/1e6)
	case n >= 1e4:
		return fmt.Sprintf("%.0f 000", n/1e3)
	}
	return fmt.Sprintf("%.0f", n)
}

// short formats a duration with about three digits.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d >= 10*time.Microsecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}
