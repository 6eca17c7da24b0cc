package main

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/redislimit"
)

// In each process, every caller makes one call per pause. Together a process's
// callers make 400 calls a second, eight times the rate for all processes.
const (
	callers = 4
	pause   = 10 * time.Millisecond
)

// result is one process's admissions, with its beginning and its end.
type result struct {
	Admitted, Denied, Failed int
	Error                    string // the last failed request's error
	Began, Ended             time.Time
}

// work makes one process's calls for the given time, and writes the result.
func work(ctx context.Context, addr string, lasts time.Duration, out io.Writer) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	// A slow laptop may need this timeout. A service would keep the default of 50 ms.
	limiter, err := redislimit.New(client, limit, &redislimit.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	r := result{Began: time.Now()}
	var mu sync.Mutex // guards r
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ; time.Since(r.Began) < lasts; time.Sleep(pause) {
				d, err := limiter.Take(ctx, "alice", 1)
				mu.Lock()
				r.count(d.Allowed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r.Ended = time.Now()
	return json.NewEncoder(out).Encode(r)
}

func (r *result) count(allowed bool, err error) {
	switch {
	case err != nil:
		r.Failed++
		r.Error = err.Error()
	case allowed:
		r.Admitted++
	default:
		r.Denied++
	}
}
