package sqltest

import (
	"context"
	"database/sql"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
	"github.com/weir-go/ratelimit/sqllimit"
)

// A fleet is several processes whose limiters share one table. The test chooses each call's
// process and the reading of the database's clock. It writes both to the process's standard input.

// call is a call made by a process for the test.
type call struct {
	ID       int
	Do       string
	At       int64 // the time of the call, in µs since 1970
	Name     string
	Limit    sentLimit // New's limit for the limiter of this name
	To       sentLimit // SetLimit's limit
	Key      string
	N        int // the cost, the actual cost or the delta
	Ahead    time.Duration
	Deadline time.Duration // the time until the context's deadline, or 0 without one
	Ended    bool          // whether the context was cancelled before the call
	Of       int           // the number of the call to settle, or whose context ends
	Together []call        // calls sharing one read and one write
}

// result is a call's result in a process.
type result struct {
	ID       int
	Decision ratelimit.Decision // without its limit: gob cannot encode it
	Limit    sentLimit
	Text     string // the error's text
	Is       []bool // for each of sentErrors, whether the error is one
	Together []result
	Reads    int // how many reads these calls took
}

// sentLimit is a limit as text.
type sentLimit struct{ Text, Name string }

func sent(l ratelimit.Limit) sentLimit {
	if l == (ratelimit.Limit{}) {
		return sentLimit{}
	}
	return sentLimit{l.Named("").String(), l.Name}
}

func (s sentLimit) limit() ratelimit.Limit {
	if s.Text == "" {
		return ratelimit.Limit{}
	}
	l, err := ratelimit.ParseLimit(s.Text)
	if err != nil {
		panic(err)
	}
	return l.Named(s.Name)
}

// sentErrors are the errors that callers distinguish.
var sentErrors = []error{
	ratelimit.ErrLimited, ratelimit.ErrBlocked, ratelimit.ErrExceedsLimit, ratelimit.ErrNegativeCost, ratelimit.ErrInvalidKey,
	ratelimit.ErrInvalidLimit, ratelimit.ErrUnavailable, ratelimit.ErrUnanswered, context.Canceled, context.DeadlineExceeded,
}

// answered returns a call's result. A reservation contains its decision.
func answered(d ratelimit.Decision, err error) result {
	r := result{Limit: sent(d.Limit), Decision: d}
	if r.Decision.Limit = (ratelimit.Limit{}); err == nil {
		return r
	}
	r.Text = err.Error()
	for _, e := range sentErrors {
		r.Is = append(r.Is, errors.Is(err, e))
	}
	return r
}

// sentError is an error returned by a process.
type sentError struct{ r result }

func (e sentError) Error() string { return e.r.Text }

func (e sentError) Unwrap() (all []error) {
	for i, is := range e.r.Is {
		if is {
			all = append(all, sentErrors[i])
		}
	}
	return all
}

func (r result) decision() (ratelimit.Decision, error) {
	d := r.Decision
	if d.Limit = r.Limit.limit(); r.Text != "" {
		return d, sentError{r}
	}
	return d, nil
}

// ---- in the process ----

// process makes the calls.
type process struct {
	now  atomic.Int64
	db   *sql.DB
	held atomic.Pointer[heldRead] // makes the next read wait, unless nil
	read atomic.Int64             // reads

	mu       sync.Mutex // guards the fields below
	limiters map[string]*sqllimit.Limiter
	made     map[int]*ratelimit.Reservation
	ends     map[int]func()
}

// heldRead is a read that waits until open is closed.
type heldRead struct{ reached, open chan struct{} }

var errKept = errors.New("the fleet deletes no rows")

// beforeQuery is called before each query. It keeps expired rows: the time of their
// deletion depends on the machine, and a row deleted during a decision must be read again.
func (p *process) beforeQuery(query string) error {
	if strings.Contains(query, "SKIP LOCKED") {
		return errKept
	}
	if !strings.Contains(query, "LEFT JOIN") {
		return nil
	}
	p.read.Add(1)
	if h := p.held.Swap(nil); h != nil {
		close(h.reached)
		<-h.open
	}
	return nil
}

// TestFleetProcess runs a process of a fleet.
func TestFleetProcess(t *testing.T) {
	name := os.Getenv("RATELIMIT_FLEET")
	if name == "" {
		t.Skip("run by the tests of a fleet")
	}
	p := &process{limiters: map[string]*sqllimit.Limiter{}, made: map[int]*ratelimit.Reservation{}, ends: map[int]func(){}}
	p.db = sql.OpenDB(&clocked{name, func() time.Time { return time.UnixMicro(p.now.Load()) }, p.beforeQuery})
	defer p.db.Close()
	p.db.SetMaxOpenConns(10)
	p.db.SetMaxIdleConns(10)
	var out sync.Mutex
	to, from := gob.NewEncoder(os.Stdout), gob.NewDecoder(os.Stdin)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		var c call
		switch err := from.Decode(&c); {
		case err == io.EOF:
			return
		case err != nil:
			panic(err)
		}
		p.now.Store(c.At)
		ctx, end := context.WithCancel(context.Background())
		if c.Deadline != 0 {
			ctx, end = context.WithTimeout(ctx, c.Deadline)
		}
		if c.Ended {
			end()
		}
		p.mu.Lock()
		p.ends[c.ID] = end
		p.mu.Unlock()
		wg.Go(func() {
			r := p.do(ctx, &c)
			r.ID = c.ID
			p.mu.Lock()
			delete(p.ends, c.ID)
			p.mu.Unlock()
			end()
			out.Lock()
			defer out.Unlock()
			if err := to.Encode(r); err != nil {
				panic(err)
			}
		})
	}
}

// limiter returns a call's limiter.
func (p *process) limiter(c *call) *sqllimit.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.limiters[c.Name]
	if l == nil {
		var err error
		if l, err = sqllimit.New(p.db, c.Limit.limit(), &sqllimit.Options{Name: c.Name, Timeout: time.Minute}); err != nil {
			panic(err)
		}
		p.limiters[c.Name] = l
	}
	return l
}

func (p *process) do(ctx context.Context, c *call) result {
	none := ratelimit.Decision{}
	switch c.Do {
	case "End":
		p.mu.Lock()
		defer p.mu.Unlock()
		if end := p.ends[c.Of]; end != nil {
			end()
		}
		return result{}
	case "Settle":
		p.mu.Lock()
		r := p.made[c.Of]
		delete(p.made, c.Of)
		p.mu.Unlock()
		return answered(none, r.Settle(c.N))
	}
	l := p.limiter(c)
	switch c.Do {
	case "Allow":
		return answered(ratelimit.Decision{Allowed: l.Allow(c.Key, c.N)}, nil)
	case "Take":
		return answered(l.Take(ctx, c.Key, c.N))
	case "Peek":
		return answered(l.Peek(ctx, c.Key, c.N))
	case "Wait":
		return answered(none, l.Wait(ctx, c.Key, c.N))
	case "Adjust":
		return answered(none, l.Adjust(ctx, c.Key, c.N))
	case "Reset":
		return answered(none, l.Reset(ctx, c.Key))
	case "SetLimit":
		return answered(none, l.SetLimit(c.To.limit()))
	case "Together":
		return p.together(l, c)
	case "Reserve":
		r, err := l.Reserve(ctx, c.Key, c.N, c.Ahead)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.made[c.ID] = r
		return answered(r.Decision, err)
	}
	panic(c.Do)
}

// waitingContext is a context. It records when the limiter begins to wait for the context's end: then the call is in line.
type waitingContext struct {
	context.Context
	once  sync.Once
	lined chan struct{}
}

func (t *waitingContext) Done() <-chan struct{} {
	t.once.Do(func() { close(t.lined) })
	return nil
}

// together makes calls on one key, one after the other, while another
// decision on the key is under way. So the calls share the next decision.
func (p *process) together(l *sqllimit.Limiter, c *call) result {
	h := &heldRead{make(chan struct{}), make(chan struct{})}
	before := p.read.Load()
	p.held.Store(h)
	all := make([]result, len(c.Together))
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := l.Peek(context.Background(), c.Key, 1); err != nil {
			panic(err)
		}
	})
	<-h.reached
	for i := range c.Together {
		ctx, done := &waitingContext{Context: context.Background(), lined: make(chan struct{})}, make(chan struct{})
		wg.Go(func() {
			defer close(done)
			all[i] = p.do(ctx, &c.Together[i])
		})
		select {
		case <-ctx.lined:
		case <-done:
		}
	}
	close(h.open)
	wg.Wait()
	return result{Together: all, Reads: int(p.read.Load() - before)}
}

// ---- in the test ----

type fleet struct {
	clock   *ratelimittest.Clock
	members []*member

	mu  sync.Mutex // guards the fields below
	rng *rand.Rand
	ids int
}

// member is a process of the fleet.
type member struct {
	mu      sync.Mutex // guards the fields below
	to      *gob.Encoder
	waiting map[int]chan result
	failed  error
}

func startFleet(t *testing.T, server *postgres, clock *ratelimittest.Clock, processes int) *fleet {
	f := &fleet{clock: clock, rng: rand.New(rand.NewPCG(testsize.Seed(1), 3))}
	for range processes {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFleetProcess$")
		cmd.Env = append(os.Environ(), "RATELIMIT_FLEET="+server.name("postgres"))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		m := &member{to: gob.NewEncoder(in), waiting: map[int]chan result{}}
		f.members = append(f.members, m)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			m.listen(gob.NewDecoder(out))
		}()
		t.Cleanup(func() {
			require.NoError(t, in.Close())
			<-ended
			require.NoError(t, cmd.Wait())
		})
	}
	return f
}

// listen passes on the results until the process ends. At its end the process prints PASS.
func (m *member) listen(from *gob.Decoder) {
	for {
		var r result
		err := from.Decode(&r)
		m.mu.Lock()
		if err != nil {
			m.failed = fmt.Errorf("the process has ended: %w", err)
			for _, w := range m.waiting {
				close(w)
			}
			m.mu.Unlock()
			return
		}
		w := m.waiting[r.ID]
		delete(m.waiting, r.ID)
		m.mu.Unlock()
		w <- r
	}
}

// send makes a call in the process, and returns a channel for the result.
func (m *member) send(c *call) <-chan result {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := make(chan result, 1)
	if m.failed == nil {
		m.failed = m.to.Encode(c)
	}
	if m.failed != nil {
		close(w)
		return w
	}
	m.waiting[c.ID] = w
	return w
}

// made gives a call its number.
func (f *fleet) made(c *call) *call {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids++
	c.ID = f.ids
	return c
}

// perform makes a call in a process, at the call's time.
func (f *fleet) perform(ctx context.Context, m *member, c *call) result {
	if deadline, ok := ctx.Deadline(); ok {
		c.Deadline = min(time.Until(deadline), -1)
		if left := time.Until(deadline); left > 0 {
			c.Deadline = left
		}
	}
	c.Ended = errors.Is(ctx.Err(), context.Canceled)
	w := m.send(f.made(c))
	select {
	case r, ok := <-w:
		return orLost(r, ok)
	case <-ctx.Done():
	}
	m.send(f.made(&call{Do: "End", Of: c.ID, At: f.now()}))
	r, ok := <-w
	return orLost(r, ok)
}

func orLost(r result, ok bool) result {
	if !ok {
		return answered(ratelimit.Decision{}, errors.New("the process has ended"))
	}
	return r
}

// now reads the clock.
func (f *fleet) now() int64 { return f.clock.Wall().UnixMicro() }

// any returns a random process.
func (f *fleet) any() *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members[f.rng.IntN(len(f.members))]
}

// limiter stands for one limiter in each process of the fleet. Each call is made by any.
type limiter struct {
	f       *fleet
	only    *member // if not nil, this process makes all calls
	name    string
	limit   ratelimit.Limit // New's limit
	changed atomic.Bool     // whether SetLimit was called since the last call
}

func (l *limiter) by() *member {
	if l.only != nil {
		return l.only
	}
	return l.f.any()
}

// call returns a call at the present time. After SetLimit, each process first makes a decision, because the
// limit holds from a process's first decision. So the limit holds from the same instant in all processes.
func (l *limiter) call(do, key string, n int) *call {
	at := l.f.now()
	if l.changed.Swap(false) && l.only == nil {
		for _, m := range l.f.members {
			l.f.perform(context.Background(), m, &call{Do: "Take", At: at, Name: l.name, Limit: sent(l.limit), Key: "any"})
		}
	}
	return &call{Do: do, At: at, Name: l.name, Limit: sent(l.limit), Key: short(key), N: n}
}

func (l *limiter) Allow(key string, cost int) bool {
	return l.f.perform(context.Background(), l.by(), l.call("Allow", key, cost)).Decision.Allowed
}

func (l *limiter) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.f.perform(ctx, l.by(), l.call("Take", key, cost)).decision()
}

func (l *limiter) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.f.perform(ctx, l.by(), l.call("Peek", key, cost)).decision()
}

func (l *limiter) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	c, by := l.call("Reserve", key, cost), l.by()
	c.Ahead = maxDelay
	d, err := l.f.perform(ctx, by, c).decision()
	return ratelimit.NewReservation(d, l.settler(by, c.ID)), err
}

// settler returns a function to settle a reservation in the process that made it.
func (l *limiter) settler(by *member, of int) func(actual int) error {
	return func(actual int) error {
		c := l.call("Settle", "", actual)
		c.Of = of
		_, err := l.f.perform(context.Background(), by, c).decision()
		return err
	}
}

func (l *limiter) Wait(ctx context.Context, key string, cost int) error {
	_, err := l.f.perform(ctx, l.by(), l.call("Wait", key, cost)).decision()
	return err
}

func (l *limiter) Adjust(ctx context.Context, key string, delta int) error {
	_, err := l.f.perform(ctx, l.by(), l.call("Adjust", key, delta)).decision()
	return err
}

func (l *limiter) Reset(ctx context.Context, key string) error {
	_, err := l.f.perform(ctx, l.by(), l.call("Reset", key, 0)).decision()
	return err
}

func (l *limiter) SetLimit(limit ratelimit.Limit) error {
	if err := limit.Validate(); err != nil {
		return err // it has no text to send
	}
	for _, m := range l.f.members {
		c := l.call("SetLimit", "", 0)
		c.To = sent(limit)
		if _, err := l.f.perform(context.Background(), m, c).decision(); err != nil {
			return err
		}
	}
	l.changed.Store(true)
	return nil
}

// The suite compares each answer with its model. Each call is made
// by any of three processes. Concurrent calls are spread over all.
func suiteOverProcesses(t *testing.T, f *fleet) {
	db := new(sql.DB) // New does not use the connection
	made := 0
	create := func(limit ratelimit.Limit, only ...*member) ([]*limiter, error) {
		made++
		name := fmt.Sprint("fleet", made)
		if _, err := sqllimit.New(db, limit, &sqllimit.Options{Name: name}); err != nil {
			return nil, err
		}
		var all []*limiter
		for _, m := range only {
			all = append(all, &limiter{f: f, only: m, name: name, limit: limit})
		}
		return all, nil
	}
	c := suiteOf(db, sqllimit.PostgreSQL, f.clock)
	if accepts := c.Accepts; !testsize.Long() {
		c.Accepts = func(l ratelimit.Limit) bool { return l.Algorithm == ratelimit.AlgorithmTokenBucket && accepts(l) }
		c.Want = c.Want[:len(c.Want)-1] // all except Calendar
	}
	c.New = func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
		all, err := create(limit, nil)
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	c.NewPair = func(limit ratelimit.Limit) (a, b ratelimit.Limiter[string], err error) {
		all, err := create(limit, f.members[0], f.members[1])
		if err != nil {
			return nil, nil, err
		}
		return all[0], all[1], nil
	}
	ratelimittest.Run(t, c)
}
