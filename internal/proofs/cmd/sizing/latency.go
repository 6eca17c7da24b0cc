package main

import (
	"context"
	"io"
	"math/bits"
	"runtime"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/redislimit"
)

// timeouts for decisions on a request
const (
	budget99  = time.Millisecond
	budget999 = 5 * time.Millisecond
)

// latency prints how long single decisions take.
func latency(ctx context.Context, out io.Writer, s settings) error {
	client, stop, err := server()
	if err != nil {
		return err
	}
	defer stop()
	t := table{head: []string{"decision", "p50", "p99", "p99.9", "a sleep's delay, p99.9", "within 1 ms at p99, 5 ms at p99.9"}}
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000), 1_000_000).Named("api")
	inMemory := ratelimit.Must(ratelimit.New[string](limit, nil))
	shared, err := redislimit.New(client, limit, &redislimit.Options{Timeout: timeout})
	if err != nil {
		return err
	}
	leased, err := lease.New[string](shared, &lease.Options[string]{MaxBatch: 1000, Timeout: timeout})
	if err != nil {
		return err
	}
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = text(i)
	}
	const pause = 4 * time.Millisecond
	for _, row := range []struct {
		name     string
		limiter  ratelimit.Limiter[string]
		keys     int
		callers  int
		pause    time.Duration // a caller's pause between two decisions
		inMemory bool
	}{
		{"Allow in memory, 10 000 keys, all cores busy", inMemory, len(keys), runtime.NumCPU(), 0, true},
		{"Allow in memory, 10 000 keys, 2 000 a second", inMemory, len(keys), 8, pause, true},
		{"Take on Redis, 10 000 keys, 2 000 a second", shared, len(keys), 8, pause, false},
		{"Take on Redis, 10 000 keys, 64 callers without a pause", shared, len(keys), 64, 0, false},
		{"Take of a lease, 8 keys, 2 000 a second", leased, 8, 8, pause, false},
		{"Take of a lease, 8 keys, all cores busy", leased, 8, runtime.NumCPU(), 0, false},
	} {
		var p50, p99, p999, late []time.Duration
		for round := range s.rounds + 1 {
			var delays, times histogram
			quiet := make(chan struct{})
			go func() { delays = sleeper(quiet); close(quiet) }()
			var mu sync.Mutex
			var group sync.WaitGroup
			start := time.Now()
			for c := range row.callers {
				group.Go(func() {
					var h histogram
					for i := c * 1000; time.Since(start) < s.per; i++ {
						key := keys[i%row.keys]
						begin := time.Now()
						if row.inMemory {
							row.limiter.Allow(key, 1)
						} else if _, e := row.limiter.Take(ctx, key, 1); e != nil {
							mu.Lock()
							err = e
							mu.Unlock()
							return
						}
						h.add(time.Since(begin))
						time.Sleep(row.pause)
					}
					mu.Lock()
					times.merge(&h)
					mu.Unlock()
				})
			}
			group.Wait()
			quiet <- struct{}{}
			<-quiet
			if err != nil {
				return err
			}
			if round == 0 {
				continue // the first call loads the scripts and the keys' first batches
			}
			p50, p99 = append(p50, times.quantile(0.5)), append(p99, times.quantile(0.99))
			p999, late = append(p999, times.quantile(0.999)), append(late, delays.quantile(0.999))
		}
		within := "yes"
		if median(p99) > budget99 || median(p999) > budget999 {
			within = "no"
		}
		t.add(row.name, short(median(p50)), short(median(p99)), short(median(p999)), short(median(late)), within)
	}
	t.print(out)
	return nil
}

// sleeper repeatedly sleeps 1 ms until end is closed, and records how much longer
// each sleep lasts. The machine adds this delay to each decision that has to wait.
func sleeper(end <-chan struct{}) (h histogram) {
	for {
		select {
		case <-end:
			return h
		default:
		}
		begin := time.Now()
		time.Sleep(time.Millisecond)
		h.add(max(0, time.Since(begin)-time.Millisecond))
	}
}

// histogram counts durations in steps of a sixteenth.
type histogram struct {
	counts [64 * 16]int64
	n      int64
}

func (h *histogram) add(d time.Duration) {
	h.counts[step(d)]++
	h.n++
}

// step returns a duration's index. Durations below 16 ns have one index each, and each power of two above has 16.
func step(d time.Duration) int {
	v := uint64(d)
	if v < 16 {
		return int(v)
	}
	e := bits.Len64(v) - 5
	return e*16 + int(v>>e)
}

// upper returns a step's longest duration.
func upper(s int) time.Duration {
	if s < 32 {
		return time.Duration(s)
	}
	e := s/16 - 1
	return time.Duration((uint64(s%16+16)+1)<<e - 1)
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
}

// quantile returns the duration not exceeded by a share q of all durations, rounded up to a step.
func (h *histogram) quantile(q float64) time.Duration {
	left := int64(q * float64(h.n))
	for i, n := range h.counts {
		if left -= n; left < 0 {
			return upper(i)
		}
	}
	return 0
}
