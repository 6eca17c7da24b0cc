package inflight_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// pagesBesideABatch plays a backend with 40 servers that serves first come, first served: pages of 50 ms need a quarter of it, and 100 workers run
// jobs one after the other, under one adaptive limit with two priorities. It returns the part of the pages that was served within a second,
// and the batch's part of the capacity that pages leave.
func pagesBesideABatch(t *testing.T, job time.Duration, limitFor func(string) int) (pages, batch float64) {
	const servers, page, warm, length = 40, 50 * time.Millisecond, 60 * time.Second, 120 * time.Second
	l, err := inflight.Protect(&options{
		Priority: func(key string) int { return map[string]int{"page": 1}[key] }, LimitFor: limitFor, MaxQueue: 200,
	})
	if err != nil {
		t.Fatal(err)
	}
	backend := make(chan struct{}, servers)
	serve := func(d time.Duration) {
		backend <- struct{}{}
		time.Sleep(d)
		<-backend
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), warm+length)
	defer cancel()
	done := func() bool { return time.Since(start) >= warm+length }
	var asked, good, worked atomic.Int64
	for range 100 {
		go func() {
			for !done() {
				p, err := l.Acquire(ctx, "batch", 1)
				if err != nil {
					time.Sleep(time.Second)
					continue
				}
				serve(job)
				p.Release()
				if at := time.Since(start); at >= warm && at < warm+length {
					worked.Add(int64(job))
				}
			}
		}()
	}
	gap := 4 * page / servers
	for !done() {
		counts := time.Since(start) >= warm
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if counts {
				asked.Add(1)
			}
			p, err := l.Acquire(ctx, "page", 1)
			if err != nil {
				return
			}
			serve(page)
			p.Release()
			if ctx.Err() == nil && counts {
				good.Add(1)
			}
		}()
		time.Sleep(gap)
	}
	time.Sleep(time.Minute)
	return float64(good.Load()) / float64(asked.Load()), time.Duration(worked.Load()).Seconds() / (servers * 0.75 * length.Seconds())
}

// A batch of long jobs with a limit of its own, as docs/inflight.md advises, leaves a higher priority its part of the backend. Without one the
// learnt limit alone leaves too little, as work cannot be interrupted.
func TestPagesPassABatchOfLongJobsThatHasALimitOfItsOwn(t *testing.T) {
	testsize.Arithmetic(t)
	for _, job := range []time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second} {
		t.Run(job.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pages, batch := pagesBesideABatch(t, job, func(key string) int { return map[string]int{"batch": 28}[key] })
				without, most := pagesBesideABatch(t, job, nil)
				t.Logf("%.2f of the pages and %.2f of the rest; without a limit %.2f and %.2f", pages, batch, without, most)
				assert.GreaterOrEqual(t, pages, 0.98)
				assert.GreaterOrEqual(t, batch, 0.9)
				assert.Greater(t, pages, without)
			})
		})
	}
}
