// Fleet proves the promises for a fleet of processes with one shared limit, while the
// store is healthy and through its faults. It starts redis-server (or the program in
// REDIS_SERVER) and eight processes of this program, and prints its progress:
//
//	go -C internal/proofs run ./fleet              all of it, in about eight minutes
//	go -C internal/proofs run ./fleet -only bounds the admitted cost, and the number of round trips
//	go -C internal/proofs run ./fleet -only chaos  decisions while Redis fails
//	go -C internal/proofs run ./fleet -only regions two regions 80 ms apart with one budget
//	go -C internal/proofs run ./fleet -only slots  processes that share slots are killed in the middle of their work
//	go -C internal/proofs run ./fleet -only handover  the speed at which slots pass from caller to caller, and the cost of waiting
//	go -C internal/proofs run ./fleet -only picture -file ../../docs/fleet.svg
//
// It prints tables in Markdown, and exits with status 1 if anything was violated.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if isWorker() || isSlotsWorker() || isHandoverWorker() {
		return
	}
	only := flag.String("only", "", "bounds, chaos, regions, slots, handover or picture; all of them if empty")
	lasts := flag.Duration("for", 20*time.Second, "how long each trial of the bounds lasts")
	engines := flag.String("engines", "failover,failover over lease,lease over failover", "engines that face the faults")
	fault := flag.String("fault", "", "only faults whose names contain this")
	file := flag.String("file", "fleet.svg", "where the picture goes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := prove(ctx, options{*only, *lasts, *fault, strings.Split(*engines, ","), *file})
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
	if failed > 0 {
		fmt.Printf("%d violations\n", failed)
		os.Exit(1)
	}
	fmt.Println("nothing was violated")
}

// options select the proofs to run.
type options struct {
	only    string
	lasts   time.Duration
	fault   string
	engines []string
	file    string
}

// prove runs the selected parts, and counts the broken promises.
func prove(ctx context.Context, o options) (failed int, err error) {
	parts := map[string]func() (int, error){
		"bounds":   func() (int, error) { return runBounds(ctx, os.Stdout, os.Stderr, o.lasts) },
		"chaos":    func() (int, error) { return runChaos(ctx, os.Stdout, os.Stderr, named(o.fault), o.engines) },
		"regions":  func() (int, error) { return runRegions(ctx, os.Stdout, os.Stderr, o.lasts) },
		"slots":    func() (int, error) { return runSlots(ctx, os.Stdout, os.Stderr, o.lasts) },
		"handover": func() (int, error) { return runHandover(ctx, os.Stdout, os.Stderr, o.lasts/4) },
		"picture":  func() (int, error) { return 0, drawStorm(ctx, os.Stderr, o.file) },
	}
	if _, ok := parts[o.only]; !ok && o.only != "" {
		return 0, fmt.Errorf("-only is %q, want bounds, chaos, regions, slots, handover or picture", o.only)
	}
	for _, part := range []string{"bounds", "chaos", "regions", "slots", "handover", "picture"} {
		if o.only != "" && o.only != part {
			continue
		}
		n, err := parts[part]()
		if failed += n; err != nil {
			return failed, err
		}
	}
	return failed, nil
}
