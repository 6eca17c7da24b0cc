package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"text/tabwriter"
	"time"
)

const processes = 3

// fleet runs all processes at once, and returns each one's result.
func fleet(ctx context.Context, addr string, lasts time.Duration) ([]result, error) {
	results, errs := make([]result, processes), make([]error, processes)
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() { results[i], errs[i] = process(ctx, addr, lasts) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", i+1, err)
		}
	}
	return results, nil
}

// process runs this program again, as one of the processes.
func process(ctx context.Context, addr string, lasts time.Duration) (r result, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, self, "-worker", "-addr", addr, "-for", lasts.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(out, &r)
}

// report prints each process's admissions, their sum and the bound.
func report(out io.Writer, name string, results []result) error {
	fmt.Fprintf(out, "Redis: %s\nlimit: %v\n\n", name, limit)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "process\tadmitted\tdenied\tfailed\t")
	for i, r := range results {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t\n", i+1, r.Admitted, r.Denied, r.Failed)
	}
	total, t := sum(results)
	fmt.Fprintf(w, "total\t%d\t%d\t%d\t\n", total.Admitted, total.Denied, total.Failed)
	if err := w.Flush(); err != nil {
		return err
	}
	if total.Failed > 0 {
		fmt.Fprintf(out, "the last failure: %s\n", total.Error)
	}
	_, err := fmt.Fprintf(out, "bound: %d + %v · %v = %.1f\n", limit.Burst, limit.Rate, t.Round(time.Millisecond), bound(t))
	return err
}

// sum adds up the results. t lasts from the first process's beginning to the last one's end.
func sum(results []result) (total result, t time.Duration) {
	total.Began = results[0].Began
	for _, r := range results {
		total.Admitted += r.Admitted
		total.Denied += r.Denied
		total.Failed += r.Failed
		if r.Error != "" {
			total.Error = r.Error
		}
		if r.Began.Before(total.Began) {
			total.Began = r.Began
		}
		if r.Ended.After(total.Ended) {
			total.Ended = r.Ended
		}
	}
	return total, total.Ended.Sub(total.Began)
}

// bound returns the maximum that a token bucket admits within t.
func bound(t time.Duration) float64 {
	return float64(limit.Burst) + float64(limit.Rate.Units)*float64(t)/float64(limit.Rate.Per)
}
