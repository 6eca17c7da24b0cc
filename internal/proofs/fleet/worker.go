package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/lease"
)

// variable names the environment variable that makes this program a process of the fleet.
const variable = "RATELIMIT_FLEET_PROCESS"

// message is one line from a process to the command that started it.
type message struct {
	Ready  bool
	Sample *sample
	Report *report
	Err    string
}

// sample has a process's decisions since its last sample.
type sample struct {
	At                                   time.Duration // from the start to the sample's end
	Decisions, Allowed, Degraded, Errors int64
	State                                string // the state of failover's breaker
	node                                 int
}

// report has a process's results at its end.
type report struct {
	Admitted  []int64 // by key
	Decisions []int64 // by key
	Latency   histogram
	Lateness  histogram // how late timers fire beside the load, because of the machine itself
	Errors    int64
	FirstErr  string
	Degraded  time.Duration // from the first degraded decision to the last
	Began     time.Time
	Ended     time.Time
	Before    int // how many goroutines there were before the limiter was made
	After     int // how many there were after it was closed
	Lease     lease.Stats
}

// isWorker runs a process of the fleet, if this program was started as one.
func isWorker() bool {
	text := os.Getenv(variable)
	if text == "" {
		return false
	}
	out := json.NewEncoder(os.Stdout)
	if err := work(text, bufio.NewReader(os.Stdin), out); err != nil {
		_ = out.Encode(message{Err: err.Error()})
		os.Exit(1)
	}
	return true
}

// work waits for the start, runs the load, and reports.
func work(text string, in *bufio.Reader, out *json.Encoder) error {
	var s setup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	if s.Alone && s.Node > 0 {
		s.Demand = 0
	}
	lines := make(chan string, 1)
	go follow(in, lines)
	before := runtime.NumGoroutine()
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	e, err := newEngine(s, client)
	if err != nil {
		return err
	}
	l := newLoad(s, e)
	if err := out.Encode(message{Ready: true}); err != nil {
		return err
	}
	start, err := parseStart(<-lines)
	if err != nil {
		return err
	}
	r := l.play(s, start, out)
	r.Before, r.After = before, closed(e, client, before)
	return out.Encode(message{Report: r})
}

// follow passes on the line that starts the load. It ends the process when the parent ends.
func follow(in *bufio.Reader, lines chan<- string) {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			os.Exit(2)
		}
		lines <- line
	}
}

func parseStart(line string) (time.Time, error) {
	ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return time.Unix(0, ns), err
}

// play runs the load, and samples it.
func (l *load) play(s setup, start time.Time, out *json.Encoder) *report {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.run(s.Demand, start, start.Add(s.Lasts))
	}()
	late := make(chan histogram, 1)
	go func() { late <- lateness(done) }()
	l.sample(start, done, out)
	r := l.report()
	r.Lateness = <-late
	r.Began, r.Ended = start, time.Now()
	return r
}

// lateness measures how late timers fire and goroutines run on this machine now.
func lateness(done <-chan struct{}) (h histogram) {
	for {
		began := time.Now()
		time.Sleep(tick)
		h.add(time.Since(began) - tick)
		select {
		case <-done:
			return h
		default:
		}
	}
}

// sampleEvery is the interval between a process's samples.
const sampleEvery = 100 * time.Millisecond

func (l *load) sample(start time.Time, done <-chan struct{}, out *json.Encoder) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = out.Encode(message{Sample: l.take(start)}) // if nobody reads, the process ends by itself
		case <-done:
			_ = out.Encode(message{Sample: l.take(start)})
			return
		}
	}
}

// take returns the decisions since the last call of take.
func (l *load) take(start time.Time) *sample {
	return &sample{
		At:        time.Since(start),
		Decisions: l.now.decisions.Swap(0),
		Allowed:   l.now.allowed.Swap(0),
		Degraded:  l.now.degraded.Swap(0),
		Errors:    l.now.errors.Swap(0),
		State:     l.engine.state().String(),
	}
}

func (l *load) report() *report {
	r := &report{Admitted: make([]int64, len(l.keys)), Decisions: make([]int64, len(l.keys)), Lease: l.engine.lease()}
	var first, last time.Time
	for _, t := range l.tallies {
		for i := range t.admitted {
			r.Admitted[i] += t.admitted[i]
			r.Decisions[i] += t.byKey[i]
		}
		r.Latency.merge(&t.latency)
		if t.firstErr != nil {
			r.Errors++
			r.FirstErr = t.firstErr.Error()
		}
		if !t.first.IsZero() && (first.IsZero() || t.first.Before(first)) {
			first = t.first
		}
		if t.last.After(last) {
			last = t.last
		}
	}
	r.Degraded = last.Sub(first)
	return r
}

// closed closes everything, and counts the remaining goroutines.
func closed(e engine, client *redis.Client, before int) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := e.flush(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = client.Close() // the process ends anyway
	for range 500 {
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return runtime.NumGoroutine()
}
