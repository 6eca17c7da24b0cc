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

// Each process has this many callers. Each caller makes one call in a pause:
// 400 a second, eight times the rate of the limit for all processes together.
const (
	callers = 4
	pause   = 10 * time.Millisecond
)

// result is the admissions of one process, with its beginning and end.
type result struct {
	Admitted, Denied, Failed int
	Error                    string // of the last request that failed
	Began, Ended             time.Time
}

// work is the whole of one process: it makes calls for the given time, and writes its result.
func work(ctx context.Context, addr string, lasts time.Duration, out io.Writer) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	// A slow laptop may wait; a service would keep the 50 ms that are the default.
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
