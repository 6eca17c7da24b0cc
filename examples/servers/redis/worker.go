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

// Each process has this number of callers. A caller makes one call in each pause. Together they make 400
// calls a second in each process, eight times the rate that the limit permits all processes together.
const (
	callers = 4
	pause   = 10 * time.Millisecond
)

// result is one process's admissions, with its beginning and its end.
type result struct {
	Admitted, Denied, Failed int
	Error                    string // the error of the last failed request
	Began, Ended             time.Time
}

// work does one process's work: it makes calls for the given time, and writes its result.
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
