// Outbound calls a partner's API, which permits 10 requests a second and answers 429 to more. Ten
// workers share one http.Client. Its Transport obeys the program's own limit, 20 a second in bursts
// of 5, and the partner. If a response has no budget left, or demands a pause, all workers wait, in
// order. The job has a deadline: a call fails at once if its turn comes after the deadline.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

var (
	ours   = ratelimit.TokenBucket(ratelimit.PerSecond(20), 5)
	theirs = ratelimit.FixedWindow(ratelimit.PerSecond(10))
)

const (
	workers  = 10
	calls    = 50
	deadline = 4 * time.Second
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	partner, err := newPartner()
	if err != nil {
		return err
	}
	defer partner.Close()
	transport, err := newTransport()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	start := time.Now()
	var t tally
	if err := callAll(ctx, &http.Client{Transport: transport}, partner.URL, &t); err != nil {
		return err
	}
	stats := transport.Stats()
	fmt.Printf("%d calls by %d workers in %v; ours: %v, theirs: %v\n", calls, workers, time.Since(start).Round(100*time.Millisecond), ours, theirs)
	fmt.Printf("  %d answered, %d not made for lack of time\n", t.ok.Load(), t.outOfTime.Load())
	fmt.Printf("  %d sent, of which the partner refused %d; %d waited\n", stats.Sent, stats.Refused, stats.Waited)
	return nil
}

// newPartner starts the partner's API. It announces its limit in header fields.
func newPartner() (*httptest.Server, error) {
	limit, err := httplimit.PerIP(theirs, nil)
	if err != nil {
		return nil, err
	}
	return httptest.NewServer(limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "done")
	}))), nil
}

// newTransport returns the client's Transport. It sends a refused call again up to 3 times.
func newTransport() (*httplimit.Transport, error) {
	perHost, err := ratelimit.New[string](ours, nil)
	if err != nil {
		return nil, err
	}
	return httplimit.NewTransport(nil, ratelimit.Map(perHost, httplimit.TargetHost), &httplimit.TransportOptions{MaxRetries: 3})
}

// tally counts calls' results.
type tally struct{ ok, outOfTime atomic.Int64 }

func callAll(ctx context.Context, client *http.Client, url string, t *tally) error {
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for worker := range errs {
		wg.Go(func() {
			for range calls / workers {
				errs[worker] = errors.Join(errs[worker], call(ctx, client, url, t))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func call(ctx context.Context, client *http.Client, url string, t *tally) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if errors.Is(err, context.DeadlineExceeded) {
		t.outOfTime.Add(1)
		return nil
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the partner answered %s", resp.Status)
	}
	t.ok.Add(1)
	return nil
}
