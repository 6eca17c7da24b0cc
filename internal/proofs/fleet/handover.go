package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/proc"
	"github.com/weir-go/ratelimit/redislimit"
)

// handoverVariable names the environment variable that makes this program a process of the handover trials.
const handoverVariable = "RATELIMIT_FLEET_HANDOVER"

// handoverSetup is the task of such a process.
type handoverSetup struct {
	Redis   string // the server's address
	Limit   int
	Callers int           // each caller acquires, works and releases, again and again
	Rate    float64       // if positive, callers arrive at random instead, this many a second
	Work    time.Duration // how long the work takes; if 0, callers only wait
	Lasts   time.Duration
}

// handoverKey is the key of all trials.
const handoverKey = "k"

func newHandover(addr string, limit int) *redislimit.Semaphore {
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 100})
	return ratelimit.Must(redislimit.NewSemaphore(client, limit, &redislimit.SemaphoreOptions{Name: "handover", Timeout: time.Second}))
}

// job is one piece of work. Its times are the machine's, in nanoseconds.
type job struct{ Called, Began, Ended int64 }

// isHandoverWorker runs a process of the trials, if this program was started as one. The process prints a
// line when it is ready, and works until its time is over or standard input closes. Then it prints its jobs.
func isHandoverWorker() bool {
	text := os.Getenv(handoverVariable)
	if text == "" {
		return false
	}
	var s handoverSetup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err) // it was written by the command, so it is valid
	}
	semaphore := newHandover(s.Redis, s.Limit)
	ctx := context.Background()
	permit, err := semaphore.Acquire(ctx, "warm "+strconv.Itoa(os.Getpid()), 1)
	if err == nil {
		err = permit.Release(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return true
	}
	jobs, err := s.play(ctx, semaphore)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(jobs); err != nil {
		os.Exit(1)
	}
	return true
}

// play runs callers for some time. It waits until the last jobs have ended.
func (s handoverSetup) play(ctx context.Context, semaphore *redislimit.Semaphore) (jobs []job, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	ctx, stop := context.WithTimeout(ctx, s.Lasts)
	defer stop()
	do := func() {
		j, failed := s.do(ctx, semaphore)
		mu.Lock()
		defer mu.Unlock()
		if failed != nil && ctx.Err() == nil {
			err = failed
		} else if failed == nil {
			jobs = append(jobs, j)
		}
	}
	if s.Rate > 0 {
		next := time.Now()
		for ctx.Err() == nil {
			wg.Go(do)
			next = next.Add(time.Duration(rand.ExpFloat64() / s.Rate * float64(time.Second)))
			time.Sleep(time.Until(next))
		}
	}
	for range s.Callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				do()
			}
		})
	}
	wg.Wait()
	return jobs, err
}

func (s handoverSetup) do(ctx context.Context, semaphore *redislimit.Semaphore) (j job, err error) {
	j.Called = time.Now().UnixNano()
	permit, err := semaphore.Acquire(ctx, handoverKey, 1)
	if err != nil {
		return j, err
	}
	j.Began = time.Now().UnixNano()
	time.Sleep(s.Work)
	j.Ended = time.Now().UnixNano()
	return j, permit.Release(ctx)
}

// crew has one trial's processes.
type crew struct {
	all []*exec.Cmd
	in  []io.WriteCloser
	out []*bufio.Reader
}

// startCrew starts processes and waits until they are ready.
func startCrew(ctx context.Context, processes int, s handoverSetup) (c *crew, err error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c = new(crew)
	for range processes {
		p := exec.CommandContext(ctx, self)
		p.Env = append(os.Environ(), handoverVariable+"="+string(text))
		p.Stderr = os.Stderr
		in, err := p.StdinPipe()
		if err != nil {
			return c, err
		}
		out, err := p.StdoutPipe()
		if err != nil {
			return c, err
		}
		if err := p.Start(); err != nil {
			return c, err
		}
		c.all, c.in, c.out = append(c.all, p), append(c.in, in), append(c.out, bufio.NewReader(out))
	}
	for _, out := range c.out {
		if _, err := out.ReadString('\n'); err != nil {
			return c, fmt.Errorf("a process did not become ready: %w", err)
		}
	}
	return c, nil
}

// begin starts the callers.
func (c *crew) begin() error {
	for _, in := range c.in {
		if _, err := io.WriteString(in, "\n"); err != nil {
			return err
		}
	}
	return nil
}

// jobs waits until the processes have ended, and returns all their jobs.
func (c *crew) jobs() (all []job, err error) {
	for i, out := range c.out {
		var jobs []job
		if err := json.NewDecoder(out).Decode(&jobs); err != nil {
			return nil, err
		}
		if err := c.all[i].Wait(); err != nil {
			return nil, err
		}
		all = append(all, jobs...)
	}
	return all, nil
}

// kill ends the processes still running.
func (c *crew) kill() {
	for _, p := range c.all {
		if p.ProcessState == nil {
			_ = proc.Resume(p.Process)
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}
}

// handoverTrial is one of the table's rows.
type handoverTrial struct {
	limit     int
	work      time.Duration
	processes int
	callers   int     // in all processes
	least     float64 // the minimum part of the ideal number of jobs
}

var handoverTrials = []handoverTrial{
	{5, 20 * time.Millisecond, 3, 15, 0.90},
	{5, 20 * time.Millisecond, 8, 16, 0.90},
	{20, 100 * time.Millisecond, 3, 60, 0.95},
	{20, 100 * time.Millisecond, 8, 64, 0.95},
	{5, 2 * time.Millisecond, 3, 15, 0.60},
	{1, 20 * time.Millisecond, 2, 2, 0.85},
}

// handoverResult has a trial's results.
type handoverResult struct {
	jobs      int
	ofIdeal   float64 // how many jobs there were, as a part of slots · time / work
	busy      float64 // the part of the slots' time spent on work
	overtaken int     // the maximum number of later callers that overtook one caller
	most      int     // the maximum number of jobs in flight
}

func (tr handoverTrial) run(ctx context.Context, server *server, lasts time.Duration) (r handoverResult, err error) {
	if err := server.do(ctx, "FLUSHALL"); err != nil {
		return r, err
	}
	c, err := startCrew(ctx, tr.processes, handoverSetup{Redis: server.addr, Limit: tr.limit, Callers: tr.callers / tr.processes, Work: tr.work, Lasts: lasts})
	defer c.kill()
	if err != nil {
		return r, err
	}
	if err := c.begin(); err != nil {
		return r, err
	}
	jobs, err := c.jobs()
	if err != nil || len(jobs) == 0 {
		return r, errors.Join(err, errors.New("no job was done"))
	}
	return tr.measure(jobs), nil
}

// measure leaves out the first and the last tenth of the time, because callers start and end in them.
func (tr handoverTrial) measure(jobs []job) (r handoverResult) {
	slices.SortFunc(jobs, func(a, b job) int { return cmp.Compare(a.Began, b.Began) })
	first, last := jobs[0].Began, jobs[len(jobs)-1].Began
	from, to := first+(last-first)/10, last-(last-first)/10
	span := float64(to - from)
	var busy int64
	for i, j := range jobs {
		busy += max(0, min(j.Ended, to)-max(j.Began, from))
		if j.Began < from || j.Began >= to {
			continue
		}
		r.jobs++
		overtaken := 0
		for k := i - 1; k >= 0 && jobs[k].Began > j.Called; k-- {
			if jobs[k].Called > j.Called {
				overtaken++
			}
		}
		r.overtaken = max(r.overtaken, overtaken)
	}
	r.most = mostInFlight(jobs)
	r.ofIdeal = float64(r.jobs) * float64(tr.work) / (float64(tr.limit) * span)
	r.busy = float64(busy) / (float64(tr.limit) * span)
	return r
}

func mostInFlight(jobs []job) (most int) {
	type change struct {
		at int64
		by int
	}
	var all []change
	for _, j := range jobs {
		all = append(all, change{j.Began, 1}, change{j.Ended, -1})
	}
	slices.SortFunc(all, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	n := 0
	for _, c := range all {
		n += c.by
		most = max(most, n)
	}
	return most
}

// waitFor waits until enough accepts the number of waiting callers, and returns how long that took.
func waitFor(ctx context.Context, semaphore *redislimit.Semaphore, enough func(waiting int) bool) (time.Duration, error) {
	begin := time.Now()
	for {
		stats, err := semaphore.Snapshot(ctx, handoverKey)
		if err != nil || enough(stats.Waiting) {
			return time.Since(begin), err
		}
		if time.Since(begin) > 30*time.Second {
			return 0, fmt.Errorf("%d callers wait", stats.Waiting)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// afterBlip holds all slots for a second, under a load of a third of the capacity. It
// returns the time until no caller waits, and how many callers had to wait.
func afterBlip(ctx context.Context, server *server) (drained time.Duration, waited int, err error) {
	const limit, work = 5, 20 * time.Millisecond
	rate := float64(limit) / work.Seconds() / 3
	c, err := startCrew(ctx, 3, handoverSetup{Redis: server.addr, Limit: limit, Rate: rate / 3, Work: work, Lasts: 8 * time.Second})
	defer c.kill()
	if err != nil {
		return 0, 0, err
	}
	semaphore := newHandover(server.addr, limit)
	if err := c.begin(); err != nil {
		return 0, 0, err
	}
	time.Sleep(2 * time.Second)
	permit, err := semaphore.Acquire(ctx, handoverKey, limit)
	if err != nil {
		return 0, 0, err
	}
	time.Sleep(time.Second)
	stats, err := semaphore.Snapshot(ctx, handoverKey)
	if err != nil {
		return 0, 0, err
	}
	if err := permit.Release(ctx); err != nil {
		return 0, 0, err
	}
	drained, err = waitFor(ctx, semaphore, func(n int) bool { return n == 0 })
	return drained, stats.Waiting, err
}

// passedBy puts 50 callers in line, and then another one. It ends the process
// of the 50, and returns how long the other caller then waits for a slot.
func passedBy(ctx context.Context, server *server, end func(*os.Process) error) (waits time.Duration, err error) {
	if err := server.do(ctx, "FLUSHALL"); err != nil {
		return 0, err
	}
	c, err := startCrew(ctx, 1, handoverSetup{Redis: server.addr, Limit: 1, Callers: 50, Lasts: time.Minute})
	defer c.kill()
	if err != nil {
		return 0, err
	}
	semaphore := newHandover(server.addr, 1)
	permit, err := semaphore.Acquire(ctx, handoverKey, 1)
	if err != nil {
		return 0, err
	}
	if err := c.begin(); err != nil {
		return 0, err
	}
	if _, err := waitFor(ctx, semaphore, func(n int) bool { return n == 50 }); err != nil {
		return 0, err
	}
	got := make(chan error, 1)
	go func() {
		permit, err := semaphore.Acquire(ctx, handoverKey, 1)
		got <- errors.Join(err, permit.Release(ctx))
	}()
	if _, err := waitFor(ctx, semaphore, func(n int) bool { return n == 51 }); err != nil {
		return 0, err
	}
	if err := end(c.all[0].Process); err != nil {
		return 0, err
	}
	time.Sleep(100 * time.Millisecond)
	begin := time.Now()
	if err := permit.Release(ctx); err != nil {
		return 0, err
	}
	err = <-got
	return time.Since(begin), err
}

var cpuSeconds = regexp.MustCompile(`used_cpu_(?:sys|user):([\d.]+)`)

// cpu returns a server's processor time so far.
func (s *server) cpu(ctx context.Context) (sum float64, err error) {
	info, err := s.admin.Info(ctx, "cpu").Result()
	for _, m := range cpuSeconds.FindAllStringSubmatch(info, -1) {
		seconds, _ := strconv.ParseFloat(m[1], 64) // the regular expression matches only numbers
		sum += seconds
	}
	return sum, err
}

// manyWait returns the part of a core used by the server while 1,000 callers wait for 2,000 taken slots.
func manyWait(ctx context.Context, server *server) (ofCore float64, err error) {
	if err := server.do(ctx, "FLUSHALL"); err != nil {
		return 0, err
	}
	const limit, waiting = 2000, 1000
	semaphore := newHandover(server.addr, limit)
	for range limit {
		if _, err := semaphore.TryAcquire(ctx, handoverKey, 1); err != nil {
			return 0, err
		}
	}
	c, err := startCrew(ctx, 8, handoverSetup{Redis: server.addr, Limit: limit, Callers: waiting / 8, Lasts: time.Minute})
	defer c.kill()
	if err != nil {
		return 0, err
	}
	if err := c.begin(); err != nil {
		return 0, err
	}
	if _, err := waitFor(ctx, semaphore, func(n int) bool { return n == waiting }); err != nil {
		return 0, err
	}
	time.Sleep(time.Second)
	before, err := server.cpu(ctx)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	time.Sleep(3 * time.Second)
	after, err := server.cpu(ctx)
	return (after - before) / time.Since(begin).Seconds(), err
}

func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }

// runHandover measures how slots pass between callers. Only an exceeded limit
// counts as a failure, because the use of the slots depends on the machine.
func runHandover(ctx context.Context, out, progress io.Writer, lasts time.Duration) (failed int, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return 0, err
	}
	defer s.close()
	t := newTable("slots", "work", "processes", "callers", "jobs", "of the ideal", "promised", "slots busy", "overtaken by, at most", "most in flight")
	for _, tr := range handoverTrials {
		fmt.Fprintf(progress, "handover: %d slots, %v, %d processes\n", tr.limit, tr.work, tr.processes)
		r, err := tr.run(ctx, s, lasts)
		if err != nil {
			return failed, err
		}
		if r.most > tr.limit {
			fmt.Fprintf(progress, "%d in flight of %d\n", r.most, tr.limit)
			failed++
		}
		t.row(fmt.Sprint(tr.limit), tr.work.String(), fmt.Sprint(tr.processes), fmt.Sprint(tr.callers), thousands(int64(r.jobs)), percent(r.ofIdeal),
			percent(tr.least), percent(r.busy), fmt.Sprint(r.overtaken), fmt.Sprint(r.most))
	}
	if err := t.print(out); err != nil {
		return failed, err
	}
	events := newTable("event", "figure")
	drained, waited, err := afterBlip(ctx, s)
	if err != nil {
		return failed, err
	}
	events.row("all 5 slots were taken for a second at a third of the capacity: the line is empty after", fmt.Sprintf("%s, %d had waited", short(drained), waited))
	killed, err := passedBy(ctx, s, (*os.Process).Kill)
	if err != nil {
		return failed, err
	}
	events.row("50 waiting callers were killed: the next one has the slot after", short(killed))
	stopped, err := passedBy(ctx, s, proc.Suspend)
	if err != nil {
		return failed, err
	}
	events.row("50 waiting callers were stopped: the next one has the slot after", short(stopped))
	ofCore, err := manyWait(ctx, s)
	if err != nil {
		return failed, err
	}
	events.row("1,000 callers of 8 processes wait for 2,000 slots: the server uses, of a core", fmt.Sprintf("%.1f %%", 100*ofCore))
	return failed, events.print(out)
}
