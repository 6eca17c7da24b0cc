package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/redislimit"
)

// slotsVariable names the environment variable that makes this program a process working in slots.
const slotsVariable = "RATELIMIT_FLEET_SLOTS"

// slotsSetup configures such a process.
type slotsSetup struct {
	Redis, Partner string // the addresses of Redis and of the partner
	Limit          int
	Hold           time.Duration
	Callers        int // callers for one slot each; another one takes all slots
}

// partner serves the processes' calls, and counts those in flight. A
// call ends with its connection, so it ends with its process, too.
type partner struct {
	net.Listener
	limit int

	mu    sync.Mutex // guards the fields below
	calls map[net.Conn]partnerCall
	partnerCounts
}

type partnerCounts struct {
	most      int // the maximum number of slots in use at once
	over      int // how many calls came above the limit
	served    int
	servedAll int // how many served calls had all slots
}

func (p *partner) counts() partnerCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.partnerCounts
}

// partnerCall is a call in flight. It uses slots until ends.
type partnerCall struct {
	slots int
	ends  time.Time
}

func newPartner(limit int) (*partner, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &partner{Listener: l, limit: limit, calls: make(map[net.Conn]partnerCall)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p, nil
}

// serve reads a call: its slots, and the instant of their end, in
// nanoseconds. It answers with a byte, and waits until the connection ends.
func (p *partner) serve(c net.Conn) {
	defer c.Close()
	var call [16]byte
	if _, err := io.ReadFull(c, call[:]); err != nil {
		return
	}
	p.begin(c, partnerCall{int(binary.BigEndian.Uint64(call[:8])), time.Unix(0, int64(binary.BigEndian.Uint64(call[8:])))})
	if _, err := c.Write([]byte{1}); err == nil {
		_, _ = io.Copy(io.Discard, c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, c)
}

// begin counts a call. If its slots have already ended, the limit does not apply to its work.
func (p *partner) begin(c net.Conn, call partnerCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.After(call.ends) {
		return
	}
	p.calls[c] = call
	inFlight := 0
	for _, other := range p.calls {
		if now.Before(other.ends) {
			inFlight += other.slots
		}
	}
	if p.most = max(p.most, inFlight); inFlight > p.limit {
		p.over++
	}
	if p.served++; call.slots == p.limit {
		p.servedAll++
	}
}

// isSlotsWorker runs a process working in slots, if this program was
// started as one. The process works until it is killed or its parent ends.
func isSlotsWorker() bool {
	text := os.Getenv(slotsVariable)
	if text == "" {
		return false
	}
	var s slotsSetup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err) // it was written by the command, so it is valid
	}
	client := redis.NewClient(&redis.Options{Addr: s.Redis})
	semaphore := ratelimit.Must(redislimit.NewSemaphore(client, s.Limit, &redislimit.SemaphoreOptions{Name: "partner", Hold: s.Hold, Timeout: time.Second}))
	for range s.Callers {
		go s.work(semaphore, 1)
	}
	go s.work(semaphore, s.Limit)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

func (s slotsSetup) work(semaphore *redislimit.Semaphore, n int) {
	for {
		if err := s.call(semaphore, n); err != nil && !errors.Is(err, ratelimit.ErrUnavailable) && !errors.Is(err, redislimit.ErrLost) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// call makes one call to the partner.
func (s slotsSetup) call(semaphore *redislimit.Semaphore, n int) error {
	ctx := context.Background()
	permit, err := semaphore.Acquire(ctx, "partner", n)
	if err != nil {
		return err
	}
	defer permit.Release(ctx)
	began := time.Now() // before Hold begins again
	if err := permit.Extend(ctx); err != nil {
		return err
	}
	c, err := net.Dial("tcp", s.Partner)
	if err != nil {
		return err
	}
	defer c.Close()
	head := binary.BigEndian.AppendUint64(nil, uint64(n))
	head = binary.BigEndian.AppendUint64(head, uint64(began.Add(s.Hold).UnixNano()))
	if _, err := c.Write(head); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, head[:1]); err != nil {
		return err
	}
	time.Sleep(rand.N(20 * time.Millisecond)) // this is the work
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, c) // until the partner no longer counts the call
	return err
}

// slotsResult has the results of a fleet with killed processes.
type slotsResult struct {
	partnerCounts
	killed int
	left   redislimit.SemaphoreStats // the semaphore's figures after Hold has passed
}

// slots is how many calls the partner may serve at once.
const slots = 5

// violations describes each broken promise.
func (r slotsResult) violations() (all []string) {
	if r.over > 0 {
		all = append(all, fmt.Sprintf("%d calls above the limit, %d in flight of %d", r.over, r.most, slots))
	}
	if r.servedAll == 0 || r.served == r.servedAll {
		all = append(all, fmt.Sprintf("of %d calls %d had all slots: some were starved", r.served, r.servedAll))
	}
	if r.left.InFlight > 0 || r.left.Waiting > 0 {
		all = append(all, fmt.Sprintf("%d slots and %d callers in line are left of processes that are dead", r.left.InFlight, r.left.Waiting))
	}
	return all
}

// killFleet runs processes sharing slots, and kills one after the other during their work.
func killFleet(ctx context.Context, server *server, processes int, lasts time.Duration) (r slotsResult, err error) {
	partner, err := newPartner(slots)
	if err != nil {
		return r, err
	}
	defer partner.Close()
	if err := server.do(ctx, "FLUSHALL"); err != nil {
		return r, err
	}
	setup := slotsSetup{server.addr, partner.Addr().String(), slots, 3 * time.Second, 8}
	text, err := json.Marshal(setup)
	if err != nil {
		return r, err
	}
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	all := make([]*exec.Cmd, processes)
	start := func(i int) error {
		all[i] = exec.CommandContext(ctx, self)
		all[i].Env = append(os.Environ(), slotsVariable+"="+string(text), "GOMAXPROCS=2")
		all[i].Stderr = os.Stderr
		if _, err := all[i].StdinPipe(); err != nil {
			return err
		}
		return all[i].Start()
	}
	kill := func(i int) error {
		if err := all[i].Process.Kill(); err != nil {
			return err
		}
		if err := all[i].Wait(); all[i].ProcessState.Exited() {
			return fmt.Errorf("a process ended by itself: %w", err)
		}
		r.killed++
		return nil
	}
	defer func() {
		for _, p := range all {
			if p != nil && p.ProcessState == nil { // still running after an error
				_ = p.Process.Kill()
				_ = p.Wait()
			}
		}
	}()
	for i := range all {
		if err := start(i); err != nil {
			return r, err
		}
	}
	for end := time.Now().Add(lasts); time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(200*time.Millisecond + rand.N(300*time.Millisecond))
		i := rand.IntN(processes)
		if err := errors.Join(kill(i), start(i)); err != nil {
			return r, err
		}
	}
	for i := range all {
		if err := kill(i); err != nil {
			return r, err
		}
	}
	r.partnerCounts = partner.counts()
	semaphore, err := redislimit.NewSemaphore(server.admin, slots, &redislimit.SemaphoreOptions{Name: "partner", Timeout: 10 * time.Second})
	if err != nil {
		return r, err
	}
	for end := time.Now().Add(setup.Hold + 10*time.Second); ; time.Sleep(10 * time.Millisecond) {
		if r.left, err = semaphore.Snapshot(ctx, "partner"); err != nil || r.left == (redislimit.SemaphoreStats{}) || time.Now().After(end) {
			return r, err
		}
	}
}

// runSlots shows that killed processes neither exceed the limit nor keep their slots.
func runSlots(ctx context.Context, out, progress io.Writer, lasts time.Duration) (failed int, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return 0, err
	}
	defer s.close()
	t := newTable("processes", "killed", "slots", "most in flight", "calls", "of all slots", "left after Hold", "violations")
	for _, processes := range []int{2, 8} {
		fmt.Fprintf(progress, "slots of %d processes\n", processes)
		r, err := killFleet(ctx, s, processes, lasts)
		if err != nil {
			return failed, err
		}
		broken := r.violations()
		for _, v := range broken {
			fmt.Fprintln(progress, v)
		}
		failed += len(broken)
		t.row(fmt.Sprint(processes), fmt.Sprint(r.killed), fmt.Sprint(slots), fmt.Sprint(r.most), fmt.Sprint(r.served),
			fmt.Sprint(r.servedAll), fmt.Sprint(r.left.InFlight), fmt.Sprint(len(broken)))
	}
	return failed, t.print(out)
}
