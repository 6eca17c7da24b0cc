package redislimit

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/lease"
)

var (
	flushing  sync.Mutex
	flushable []*lease.Limiter[leaseKey]
)

func init() {
	madeLeases = func(l *lease.Limiter[leaseKey]) {
		flushing.Lock()
		flushable = append(flushable, l)
		flushing.Unlock()
	}
}

// flushAll flushes every leased layer of a test's process, because leases belong to their limiter.
func flushAll(_ any, ctx context.Context) error {
	flushing.Lock()
	defer flushing.Unlock()
	var errs []error
	for _, s := range flushable {
		if err := s.Flush(ctx); !errors.Is(err, redis.ErrClosed) { // a closed client belongs to an ended test
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
