// Outbound calls a partner's API that allows 20 requests a second in bursts of 5,
// and answers 429 to more. Ten workers share one limiter, which makes each of them
// wait for its turn, so that the partner never has to say no. The whole job has a
// deadline: calls that cannot be made before it are refused at once, instead of
// after waiting in vain.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

var agreed = ratelimit.TokenBucket(ratelimit.PerSecond(20), 5)

func main() {
	partner := httptest.NewServer(newPartner())
	defer partner.Close()
	if err := run(partner.URL); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// newPartner returns the API that is called. It enforces the limit by itself, and
// allows for the jitter of a network: it lets 2 more through than was agreed.
func newPartner() http.Handler {
	limit := agreed
	limit.Burst += 2
	limiter := ratelimit.Must(ratelimit.New[string](limit, nil))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !limiter.Allow("us", 1) {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
}

// tally counts how the calls ended.
type tally struct{ ok, tooMany, outOfTime atomic.Int64 }

func run(url string) error {
	limiter, err := ratelimit.New[string](agreed, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	start := time.Now()
	var t tally
	if err := callAll(ctx, limiter, url, &t); err != nil {
		return err
	}
	fmt.Printf("50 calls under %v, in %v:\n", agreed, time.Since(start).Round(100*time.Millisecond))
	fmt.Printf("  %d answered, %d told 429, %d not made for lack of time\n",
		t.ok.Load(), t.tooMany.Load(), t.outOfTime.Load())
	return nil
}

func callAll(ctx context.Context, limiter *ratelimit.Keyed[string], url string, t *tally) error {
	var wg sync.WaitGroup
	errs := make([]error, 10)
	for worker := range errs {
		wg.Go(func() {
			for range 5 {
				errs[worker] = errors.Join(errs[worker], call(ctx, limiter, url, t))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func call(ctx context.Context, limiter *ratelimit.Keyed[string], url string, t *tally) error {
	err := limiter.Wait(ctx, "partner", 1)
	if errors.Is(err, context.DeadlineExceeded) {
		t.outOfTime.Add(1)
		return nil
	}
	if err != nil {
		return err
	}
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusTooManyRequests {
		t.tooMany.Add(1)
	} else {
		t.ok.Add(1)
	}
	return nil
}
