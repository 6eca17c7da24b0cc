package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// demoLimits permit about the same, each in its own way: 10 requests at once, and 2 a second.
var demoLimits = []ratelimit.Limit{
	ratelimit.TokenBucket(ratelimit.PerSecond(2), 10),
	ratelimit.LeakyBucket(ratelimit.PerSecond(2), 10),
	ratelimit.FixedWindow(ratelimit.Per(10, 5*time.Second)),
	ratelimit.SlidingLog(ratelimit.Per(10, 5*time.Second)),
	ratelimit.SlidingCounter(ratelimit.Per(10, 5*time.Second)),
}

// demo sends bursts to handlers with different limits, and streams each request's result as server-sent events.
// A browser could not send the bursts itself: it opens only six connections, and a leaky bucket would hold all.
type demo struct{ targets []target }

type target struct {
	limit   ratelimit.Limit
	handler http.Handler
}

func newDemo(client clientKey) (*demo, error) {
	d := new(demo)
	for _, limit := range demoLimits {
		l, err := ratelimit.New[netip.Addr](limit.Named(limit.Algorithm.String()), nil)
		if err != nil {
			return nil, err
		}
		m, err := httplimit.New(ratelimit.Map(l, client), nil)
		if err != nil {
			return nil, err
		}
		d.targets = append(d.targets, target{limit, m.Wrap(http.HandlerFunc(serveItems))})
	}
	return d, nil
}

// pattern is a sequence of bursts: how many there are, how many requests each has, and the time between them.
type pattern struct {
	bursts, requests int
	gap              time.Duration
}

func parsePattern(r *http.Request) (p pattern, err error) {
	gap := 0
	for _, f := range []struct {
		name     string
		to       *int
		min, max int
	}{{"bursts", &p.bursts, 1, 10}, {"requests", &p.requests, 1, 50}, {"gap", &gap, 0, 10_000}} {
		if *f.to, err = strconv.Atoi(r.FormValue(f.name)); err != nil || *f.to < f.min || *f.to > f.max {
			return p, fmt.Errorf("%s is %q, want %d to %d", f.name, r.FormValue(f.name), f.min, f.max)
		}
	}
	p.gap = time.Duration(gap) * time.Millisecond
	return p, nil
}

// result is the answer to one request.
type result struct {
	Algorithm string            `json:"algorithm"`
	Limit     string            `json:"limit"`
	Fired     int64             `json:"fired"`    // milliseconds from the first burst
	Answered  int64             `json:"answered"` // the same
	Status    int               `json:"status"`
	Header    map[string]string `json:"header"`
}

func (d *demo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, err := parsePattern(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	stream := http.NewResponseController(w)
	for res := range d.fire(r, p) {
		line, err := json.Marshal(res)
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(w, "data: %s\n\n", line)
		_ = stream.Flush() // if the client has gone, the context ends the requests
	}
	_, _ = fmt.Fprint(w, "event: done\ndata:\n\n")
}

// fire sends the bursts, and passes each result on. The channel has room for
// all results, so no goroutine stays behind if the client stops reading.
func (d *demo) fire(r *http.Request, p pattern) <-chan result {
	results := make(chan result, p.bursts*p.requests*len(d.targets))
	var wg sync.WaitGroup
	begin := time.Now()
	wg.Go(func() {
		for i := range p.bursts {
			if !sleepUntil(r.Context(), begin.Add(time.Duration(i)*p.gap)) {
				return
			}
			for _, t := range d.targets {
				for range p.requests {
					wg.Go(func() { results <- t.send(r, begin) })
				}
			}
		}
	})
	go func() { wg.Wait(); close(results) }()
	return results
}

// sleepUntil sleeps until an instant. It returns false if the context ends first.
func sleepUntil(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// send makes the target answer the same client's request.
func (t target) send(r *http.Request, begin time.Time) result {
	a := &answer{header: http.Header{}, status: http.StatusOK}
	fired := time.Since(begin).Milliseconds()
	t.handler.ServeHTTP(a, r.Clone(r.Context()))
	res := result{
		Algorithm: t.limit.Algorithm.String(), Limit: t.limit.String(), Status: a.status,
		Fired: fired, Answered: time.Since(begin).Milliseconds(), Header: map[string]string{},
	}
	for _, name := range []string{"RateLimit-Policy", "RateLimit", "Retry-After"} {
		if v := a.header.Get(name); v != "" {
			res.Header[name] = v
		}
	}
	return res
}

// answer records a response's status and header.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
