package apis

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// Event is a disturbance during the hour, or Calm.
type Event string

// The events.
const (
	Calm    Event = "calm"    // no event: all workers are busy all the time
	Bursts  Event = "bursts"  // each process sends 40 requests at once every three minutes
	Changed Event = "changed" // the limit is halved for the hour's second third
	Skewed  Event = "skewed"  // the server's clock is five minutes ahead
	Outage  Event = "outage"  // no connection is accepted for half an hour, from the tenth minute
	Failing Event = "failing" // the server answers 500 in the same half hour
)

// Events lists all events.
var Events = []Event{Calm, Bursts, Changed, Skewed, Outage, Failing}

// Send sends a request, and retries until the server serves it. If the server never does, Send returns an error.
type Send func(ctx context.Context) error

// Retries is how often a Transport sends a refused request again.
const Retries = 20

// Transport returns a Send that uses this library's Transport. A 500 counts as a refusal.
func Transport(base http.RoundTripper) Send {
	failing := func(resp *http.Response) (httplimit.Advice, bool) {
		return httplimit.Advice{Refused: true}, resp.StatusCode == http.StatusInternalServerError
	}
	own := ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil)), httplimit.TargetHost)
	t := ratelimit.Must(httplimit.NewTransport(base, own, &httplimit.TransportOptions{MaxRetries: Retries, MaxWait: -1, Advice: failing}))
	c := &http.Client{Transport: t}
	return func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/", nil)
		if err != nil {
			return err
		}
		return Served(c.Do(r))
	}
}

// Served reads a response, and returns an error if the request was not served.
func Served(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// Play is an hour of several processes sharing one account.
type Play struct {
	API       API
	Processes int
	Event     Event
	Seed      uint64
	Hour      time.Duration // the play's length; defaults to an hour
	Workers   int           // how many each process has; defaults to ten
	// Client returns a process's Send through the transport.
	Client func(base http.RoundTripper) Send
}

// Result contains the server's counts.
type Result struct {
	Served, Refused, Failed int
	Goodput                 float64       // Served, divided by the limit's maximum, or by the bursts' requests if these are fewer
	Silence                 time.Duration // the longest time without a served request, while requests were waiting
	By                      []int         // Served by process
}

// Share returns the refused share of all requests reaching the server.
func (r Result) Share() float64 { return float64(r.Refused) / float64(max(1, r.Refused+r.Served)) }

// Spread compares the processes with the fewest and the most served
// requests with the mean. For example, -0.1 means 10 % below the mean.
func (r Result) Spread() (least, most float64) {
	mean := float64(r.Served) / float64(len(r.By))
	least, most = 1, 0
	for _, n := range r.By {
		least, most = min(least, float64(n)/mean-1), max(most, float64(n)/mean-1)
	}
	return least, most
}

// String returns a line of a table.
func (r Result) String() string {
	least, most := r.Spread()
	return fmt.Sprintf("%6d served, %5.1f %% goodput, %5.1f %% refused, %+4.0f..%+.0f %%, %v of silence, %d failed",
		r.Served, 100*r.Goodput, 100*r.Share(), 100*least, 100*most, r.Silence.Round(100*time.Millisecond), r.Failed)
}

// When the outage begins, and how long it lasts.
const (
	outageFrom = 10 * time.Minute
	outageFor  = 30 * time.Minute
)

// world is a play in progress.
type world struct {
	Play
	server *server
	begin  time.Time

	mu        sync.Mutex
	rnd       *rand.Rand
	result    Result
	last      time.Time // when the last request was served
	requested int       // requests in bursts
	open      int       // requests that workers wait for
}

// Run plays the hour. It must be called in a bubble of testing/synctest.
func (p Play) Run(ctx context.Context) Result {
	if p.Hour == 0 {
		p.Hour = time.Hour
	}
	if p.Workers == 0 {
		p.Workers = 10
	}
	// a bubble begins in 2000, and clients do not recognize Unix times so small
	time.Sleep(time.Until(time.Date(2026, time.March, 3, 9, 30, 12, 345e6, time.UTC)))
	w := &world{Play: p, begin: time.Now(), last: time.Now(), rnd: rand.New(rand.NewPCG(p.Seed, 0))} //nolint:gosec
	w.result.By = make([]int, p.Processes)
	skew := time.Duration(0)
	if p.Event == Skewed {
		skew = 5 * time.Minute
	}
	w.server = p.API.start(skew)
	ctx, cancel := context.WithCancel(ctx) // without a deadline, because a request whose turn comes after a deadline fails at once
	defer cancel()
	time.AfterFunc(p.Hour, cancel)
	var all sync.WaitGroup
	if p.Event == Changed {
		all.Go(func() { w.change(ctx) })
	}
	for n := range p.Processes {
		send := p.Client(base{w, n})
		if p.Event == Bursts {
			all.Go(func() { w.burst(ctx, send, &all) })
			continue
		}
		for range p.Workers {
			all.Go(func() {
				for ctx.Err() == nil {
					w.send(ctx, send)
				}
			})
		}
	}
	all.Wait()
	if p.Event != Bursts {
		w.quiet(w.begin.Add(p.Hour))
	}
	w.result.Goodput = float64(w.result.Served) / float64(w.most())
	return w.result
}

// most returns the maximum number of requests that the server could serve.
func (w *world) most() int {
	fresh := within(w.API.Limit, w.Hour, true)
	switch w.Event {
	case Bursts:
		return min(w.requested, fresh)
	case Changed:
		third := within(w.API.Limit, w.Hour/3, false)
		return fresh - third/2
	case Outage, Failing:
		return within(w.API.Limit, outageFrom, true) + within(w.API.Limit, w.Hour-outageFrom-outageFor, true)
	}
	return fresh
}

// change halves the limit for a third of the hour.
func (w *world) change(ctx context.Context) {
	half := w.API.Limit
	if half.Rate.Units%2 == 0 {
		half.Rate.Units /= 2
	} else {
		half.Rate.Per *= 2
	}
	if half.Burst > 1 {
		half.Burst /= 2
	}
	for _, limit := range []ratelimit.Limit{half, w.API.Limit} {
		select {
		case <-ctx.Done():
			return
		case <-time.After(w.Hour / 3):
		}
		if err := w.server.limiter.SetLimit(limit); err != nil {
			panic(err)
		}
	}
}

// burst sends 40 requests at once every three minutes.
func (w *world) burst(ctx context.Context, send Send, all *sync.WaitGroup) {
	w.sleep(ctx, time.Minute)
	for ctx.Err() == nil {
		for range 40 {
			w.mu.Lock()
			w.requested++
			w.mu.Unlock()
			all.Go(func() { w.send(ctx, send) })
		}
		select {
		case <-ctx.Done():
		case <-time.After(3 * time.Minute):
		}
	}
}

// sleep sleeps for a random time below most.
func (w *world) sleep(ctx context.Context, most time.Duration) {
	w.mu.Lock()
	d := time.Duration(w.rnd.Int64N(int64(most)))
	w.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (w *world) send(ctx context.Context, send Send) {
	w.mu.Lock()
	if w.open == 0 && w.Event == Bursts {
		w.last = time.Now()
	}
	w.open++
	w.mu.Unlock()
	err := send(ctx)
	w.mu.Lock()
	w.open--
	failed := err != nil && ctx.Err() == nil
	if failed {
		w.result.Failed++
	}
	w.mu.Unlock()
	if failed {
		w.sleep(ctx, 200*time.Millisecond) // a program that logs its error takes about as long
	}
}

// served counts a process's served request.
func (w *world) served(n int) {
	w.result.Served++
	w.result.By[n]++
	w.quiet(time.Now())
}

// quiet measures the silence up to now, without the outage.
func (w *world) quiet(now time.Time) {
	if up := w.begin.Add(outageFrom + outageFor); (w.Event == Outage || w.Event == Failing) && now.After(up) && w.last.Before(up) {
		w.last = up
	}
	w.result.Silence, w.last = max(w.result.Silence, now.Sub(w.last)), now
}

// base is one process's transport to the server.
type base struct {
	w *world
	n int
}

// RoundTrip sends the request, which takes 30 to 70 ms.
func (b base) RoundTrip(r *http.Request) (*http.Response, error) {
	w := b.w
	w.mu.Lock()
	there, back := 15+w.rnd.IntN(20), 15+w.rnd.IntN(20)
	w.mu.Unlock()
	if err := pause(r.Context(), time.Duration(there)*time.Millisecond); err != nil {
		return nil, err
	}
	if since := time.Since(w.begin) - outageFrom; since >= 0 && since < outageFor {
		switch w.Event {
		case Outage:
			return nil, &connectionError{}
		case Failing:
			return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}
	}
	rec := httptest.NewRecorder()
	rec.Header().Set("Date", time.Now().Add(w.server.skew).UTC().Format(http.TimeFormat))
	w.server.handler.ServeHTTP(rec, r)
	w.mu.Lock()
	if rec.Code == http.StatusOK {
		w.served(b.n)
	} else {
		w.result.Refused++
	}
	w.mu.Unlock()
	if err := pause(r.Context(), time.Duration(back)*time.Millisecond); err != nil {
		return nil, err
	}
	return rec.Result(), nil
}

// pause sleeps until the time is over or the context ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// connectionError is the error of a refused connection.
type connectionError struct{}

func (*connectionError) Error() string   { return "dial tcp 192.0.2.1:443: connect: connection refused" }
func (*connectionError) Timeout() bool   { return false }
func (*connectionError) Temporary() bool { return false }
func (*connectionError) Unwrap() error   { return syscall.ECONNREFUSED }
