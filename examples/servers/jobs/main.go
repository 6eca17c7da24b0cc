// Jobs is a worker in a fleet. The fleet runs at most ten jobs at the same
// time, and three for each tenant. Start as many workers as you like:
//
//	go -C examples/servers run ./jobs -redis 127.0.0.1:6379 acme globex initech
//
// The arguments are its jobs' tenants. Each job takes a second. If you kill a worker, its slots come
// back after ten seconds. A tenant with one job waits for one turn, however many jobs the others have.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/redislimit"
)

const (
	inAll     = 10
	perTenant = 3
)

func main() {
	addr := flag.String("redis", "127.0.0.1:6379", "`address` of Redis")
	hold := flag.Duration("hold", 10*time.Second, "`time` after which the slots of a killed worker come back")
	lasts := flag.Duration("job", time.Second, "`duration` of a job")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client := redis.NewClient(&redis.Options{Addr: *addr})
	defer client.Close()
	slots, err := newSlots(client, *hold)
	if err == nil {
		err = work(ctx, slots, flag.Args(), *lasts, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// newSlots returns the fleet's slots.
func newSlots(client redis.UniversalClient, hold time.Duration) (*redislimit.Semaphore, error) {
	return redislimit.NewSemaphore(client, perTenant, &redislimit.SemaphoreOptions{
		Name: "jobs", Total: inAll, Hold: hold, Timeout: time.Second,
	})
}

// work runs a job for each tenant in the list, as many at once as the
// slots permit. It writes a line at the beginning and the end of each.
func work(ctx context.Context, slots *redislimit.Semaphore, tenants []string, lasts time.Duration, out io.Writer) error {
	var mu sync.Mutex // guards out and errs
	var errs []error
	printf := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	var jobs sync.WaitGroup
	for _, tenant := range tenants {
		jobs.Go(func() {
			err := slots.Do(ctx, tenant, 1, func(ctx context.Context) error {
				printf("begin %s", tenant)
				defer printf("end %s", tenant)
				return run(ctx, lasts)
			})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("a job of %s: %w", tenant, err))
			}
		})
	}
	jobs.Wait()
	return errors.Join(errs...)
}

// run runs a job. It ends early if the job's slot is lost, because another job may have begun in that slot.
func run(ctx context.Context, lasts time.Duration) error {
	select {
	case <-time.After(lasts):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
