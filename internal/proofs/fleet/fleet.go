package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"sync"
	"time"
)

// process is one process of the fleet.
type process struct {
	node   int
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	report *report
	err    error
}

// result has a fleet's results.
type result struct {
	setup    setup
	reports  []*report
	mu       sync.Mutex // guards samples while the fleet runs
	samples  []sample
	admitted []int64 // by key, for all processes together
	decided  []int64
	latency  histogram
	lateness histogram
	took     time.Duration // from the first decision to the last answer
	notices  []string      // errors returned to callers
}

// startFleet starts the processes and waits until each is ready.
func startFleet(ctx context.Context, s setup) (all []*process, err error) {
	defer func() {
		if err != nil {
			stop(all)
		}
	}()
	for node := range s.Nodes {
		s.Node = node
		s.Seed = uint64(node) + 1
		if s.Addrs != nil {
			s.Addr, s.Demand = s.Addrs[node], s.Demands[node]
		}
		p, err := startProcess(ctx, s)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	for _, p := range all {
		if m, err := p.next(); err != nil || !m.Ready {
			return all, fmt.Errorf("a process did not start: %v %s", err, m.Err)
		}
	}
	return all, nil
}

// startProcess starts this program once more.
func startProcess(ctx context.Context, s setup) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	p := &process{node: s.Node, cmd: exec.CommandContext(ctx, self)}
	p.cmd.Env = append(os.Environ(), variable+"="+string(text), "GOMAXPROCS=2")
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 1<<24)
	return p, p.cmd.Start()
}

// next reads one message.
func (p *process) next() (m message, err error) {
	if !p.out.Scan() {
		return m, errors.Join(errors.New("a process ended without a report"), p.out.Err())
	}
	err = json.Unmarshal(p.out.Bytes(), &m)
	return m, err
}

func stop(all []*process) {
	for _, p := range all {
		_ = p.in.Close()
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// runFleet runs a fleet. Meanwhile f may change Redis.
func runFleet(ctx context.Context, s setup, f func(start time.Time) error) (*result, error) {
	all, err := startFleet(ctx, s)
	if err != nil {
		return nil, err
	}
	defer stop(all)
	res := &result{setup: s}
	start := time.Now().Add(100 * time.Millisecond)
	var wg sync.WaitGroup
	for _, p := range all {
		if _, err := fmt.Fprintln(p.in, start.UnixNano()); err != nil {
			return nil, err
		}
		wg.Go(func() { p.follow(res) })
	}
	var failed error
	if f != nil {
		failed = f(start)
	}
	wg.Wait()
	for _, p := range all {
		failed = errors.Join(failed, p.err, p.end())
	}
	if failed != nil {
		return nil, failed
	}
	res.sum(all)
	return res, nil
}

// follow reads a process's messages until its report.
func (p *process) follow(res *result) {
	for p.report == nil && p.err == nil {
		m, err := p.next()
		switch {
		case err != nil:
			p.err = err
		case m.Err != "":
			p.err = errors.New(m.Err)
		case m.Sample != nil:
			res.mu.Lock()
			m.Sample.node = p.node
			res.samples = append(res.samples, *m.Sample)
			res.mu.Unlock()
		}
		p.report = m.Report
	}
}

// end waits until a process ends that has reported. If the race detector has found a race, the process ends with an error.
func (p *process) end() error {
	if p.report == nil {
		return nil // it has failed, and has already reported that
	}
	return p.cmd.Wait()
}

// sum adds up the reports.
func (r *result) sum(all []*process) {
	r.admitted = make([]int64, r.setup.Keys)
	r.decided = make([]int64, r.setup.Keys)
	for _, p := range all {
		r.reports = append(r.reports, p.report)
		for i := range r.admitted {
			r.admitted[i] += p.report.Admitted[i]
			r.decided[i] += p.report.Decisions[i]
		}
		r.latency.merge(&p.report.Latency)
		r.lateness.merge(&p.report.Lateness)
		r.took = max(r.took, p.report.Ended.Sub(p.report.Began))
		if p.report.Errors > 0 {
			r.notices = append(r.notices, p.report.FirstErr)
		}
	}
}

// regained returns how many units a key regains in t, rounded up.
func (s setup) regained(t time.Duration) int64 {
	return (int64(t)*int64(s.Rate.Units) + int64(s.Rate.Per) - 1) / int64(s.Rate.Per)
}

// centralBound returns the maximum cost that one shared budget admits during the run.
func (r *result) centralBound() int64 { return int64(r.setup.Burst) + r.setup.regained(r.took) }

// leasedBound is centralBound plus a batch for each process.
func (r *result) leasedBound() int64 {
	return r.centralBound() + int64(r.setup.Nodes)*int64(r.setup.MaxBatch)
}

// outageBound is leasedBound plus what each process admits alone, if the store loses its data lost times.
func (r *result) outageBound(lost int) int64 {
	bound := r.centralBound() + int64(lost)*int64(r.setup.Burst)
	share := r.setup.share()
	for _, p := range r.reports {
		if p.Degraded > 0 {
			alone := int64(p.Degraded)*int64(share.Rate.Units)/int64(share.Rate.Per) + 1
			bound += int64(share.Burst) + alone
		}
	}
	if r.setup.MaxBatch > 0 {
		bound += int64(r.setup.Nodes) * int64(r.setup.MaxBatch)
	}
	return bound
}

// count adds up the samples.
func (r *result) count() (c sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.samples {
		c.Decisions += s.Decisions
		c.Allowed += s.Allowed
		c.Degraded += s.Degraded
		c.Errors += s.Errors
	}
	return c
}

// closedAfter returns how long after healed it took until each breaker had been closed once.
func (r *result) closedAfter(healed time.Duration) (last time.Duration) {
	for node := range r.setup.Nodes {
		first := time.Duration(math.MaxInt64)
		for _, s := range r.samples {
			if s.node == node && s.At > healed && s.State == "closed" {
				first = min(first, s.At-healed)
			}
		}
		last = max(last, first)
	}
	return last
}
