package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/wait"
)

const (
	scanCount = 1000 // keys examined by one SCAN
	peekers   = 64   // the maximum number of concurrent decisions on a page
)

// Each calls visit with each of the limiter's keys in Redis, on all servers, and [Limiter.Peek]'s result for a cost of 1,
// until visit returns false. It writes nothing. If a key is added, removed or moved to another server during the call, it is
// visited once or not at all. Keys above 200 bytes are left out. A fresh key stays in Redis for some time, and is Allowed.
//
// It scans all keys of each server, 1,000 a call, and keeps 16 bytes for each visited key. A call takes up to a
// second, or [Options.Timeout] if longer. Errors are as for Peek; a single key's error is returned at the end.
func (l *Limiter) Each(ctx context.Context, visit func(key string, d ratelimit.Decision) bool) error {
	l.check()
	ctx = wait.OrBackground(ctx)
	if visit == nil {
		return optional.Nil("redislimit: Each: visit")
	}
	return newWalk(l.store.scanning(), []*Limiter{l}, func(_ int, key string, d ratelimit.Decision) bool { return visit(key, d) }).all(ctx)
}

// Each is [Limiter.Each] for all joined limiters: it scans each server's keys once. The first argument of visit is
// the index of the key's limiter. Package policy calls this method. Limiters of several clients are not supported.
func (j *joint) Each(ctx context.Context, visit func(limiter int, key string, d ratelimit.Decision) bool) error {
	all, store := make([]*Limiter, len(j.limiters)), j.store
	for i := range j.limiters {
		if all[i] = j.limiters[i].l; all[i].store.user != store.user {
			return fmt.Errorf("redislimit: the limiters have several clients: %w", errors.ErrUnsupported)
		}
	}
	return newWalk(store.scanning(), all, visit).all(wait.OrBackground(ctx))
}

// scanning returns the store with a timeout of at least a second, for a SCAN.
func (s *store) scanning() *store {
	if s.timeout < 0 {
		return s
	}
	return s.within(max(s.timeout, time.Second))
}

// servers returns a client for each server with keys.
func (s *store) servers(ctx context.Context) ([]redis.Cmdable, error) {
	var servers []redis.Cmdable
	switch c := s.client.(type) {
	case *redis.Ring:
		for _, shard := range c.GetShardClients() {
			servers = append(servers, shard)
		}
		if len(servers) == 0 {
			return nil, &outcome.Undecided{Cause: errors.New("no server of the Ring is up")}
		}
	case *redis.ClusterClient:
		var mu sync.Mutex
		err := s.bounded(ctx, func(ctx context.Context) error {
			return c.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				servers = append(servers, master)
				return nil
			})
		})
		if err != nil {
			return nil, err
		}
	default:
		servers = append(servers, c)
	}
	return servers, nil
}

// bounded makes a call without changes, and returns when the context ends, or at the timeout.
func (s *store) bounded(ctx context.Context, call func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return ended(err, false)
	}
	within, stop := ctx, func() {}
	if s.timeout >= 0 {
		within, stop = context.WithTimeout(ctx, s.timeout)
	}
	defer stop()
	done := make(chan error, 1)
	go func() { done <- call(within) }()
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && within.Err() != nil {
			err = fmt.Errorf("no answer within %v (Options.Timeout): %w", s.timeout, err)
		}
		return classify(ctx, err, false)
	case <-within.Done():
		if ctx.Err() != nil {
			return ended(ctx.Err(), false)
		}
		return &outcome.Undecided{Cause: fmt.Errorf("no answer within %v (Options.Timeout): %w", s.timeout, within.Err())}
	}
}

// walk is one call to Each.
type walk struct {
	limiters []*Limiter
	byBegin  map[string]int // the limiters' indexes, by what their keys begin with
	pattern  string         // matches all limiters' keys
	store    *store
	visit    func(limiter int, key string, d ratelimit.Decision) bool
	seen     map[[2]uint64]struct{} // hashes of the visited keys: SCAN may return a key several times
	seeds    [2]maphash.Seed
	failed   error // the error of the first failed key
}

// listed is a key of a limiter.
type listed struct {
	limiter int
	key     string
}

func newWalk(store *store, limiters []*Limiter, visit func(limiter int, key string, d ratelimit.Decision) bool) *walk {
	w := &walk{limiters: limiters, byBegin: make(map[string]int, len(limiters)), store: store, visit: visit,
		seen: make(map[[2]uint64]struct{}), seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	common := ""
	for i, l := range limiters {
		begin := l.space.begin
		if w.byBegin[begin] = i; i == 0 {
			common = begin + ":{"
		}
		for !strings.HasPrefix(begin+":{", common) {
			common = common[:len(common)-1]
		}
	}
	w.pattern = globs.Replace(common) + "*"
	return w
}

// all visits all servers' keys.
func (w *walk) all(ctx context.Context) error {
	servers, err := w.store.servers(ctx)
	if err != nil {
		return err
	}
	for _, server := range servers {
		if more, err := w.scan(ctx, server); err != nil || !more {
			return err
		}
	}
	return w.failed
}

// scan visits one server's keys. It reports false if visit has returned false.
func (w *walk) scan(ctx context.Context, server redis.Cmdable) (more bool, err error) {
	for cursor := uint64(0); ; {
		var page []string
		err := w.store.bounded(ctx, func(ctx context.Context) (err error) {
			page, cursor, err = server.Scan(ctx, cursor, w.pattern, scanCount).Result()
			return err
		})
		if err != nil {
			return false, err
		}
		if more, err := w.look(ctx, w.fresh(page)); err != nil || !more {
			return false, err
		}
		if cursor == 0 {
			return true, nil
		}
	}
}

// globs escapes the special characters of SCAN's patterns.
var globs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// fresh returns a page's unvisited keys of the limiters.
func (w *walk) fresh(page []string) (keys []listed) {
	for _, stored := range page {
		brace := strings.IndexByte(stored, '{')
		if brace < 1 {
			continue
		}
		limiter, ok := w.byBegin[stored[:brace-1]]
		if !ok {
			continue
		}
		key, ok := w.limiters[limiter].space.original(stored)
		if !ok {
			continue
		}
		hash := [2]uint64{maphash.String(w.seeds[0], stored), maphash.String(w.seeds[1], stored)}
		if _, ok := w.seen[hash]; !ok {
			w.seen[hash] = struct{}{}
			keys = append(keys, listed{limiter, key})
		}
	}
	return keys
}

// look visits keys.
func (w *walk) look(ctx context.Context, keys []listed) (more bool, err error) {
	decisions, errs := make([]ratelimit.Decision, len(keys)), make([]error, len(keys))
	var next atomic.Int64
	var callers sync.WaitGroup
	for range min(peekers, len(keys)) {
		callers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(keys)); i = next.Add(1) - 1 {
				r, l := &request{store: w.store}, w.limiters[keys[i].limiter]
				if decisions[i], errs[i] = l.decide(ctx, r, keys[i].key, 1, math.MaxInt64, opPeek); ofAll(errs[i]) {
					next.Store(int64(len(keys)))
				}
			}
		})
	}
	callers.Wait()
	if i := slices.IndexFunc(errs, ofAll); i >= 0 {
		return false, errs[i]
	}
	for i, k := range keys {
		if err := errs[i]; err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
			w.failed = cmp.Or(w.failed, err)
		} else if !w.visit(k.limiter, k.key, decisions[i]) {
			return false, nil
		}
	}
	return true, nil
}

// ofAll reports whether an error concerns all keys, not a single one.
func ofAll(err error) bool {
	return err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) && !errors.Is(err, errForeignState) && !errors.Is(err, ratelimit.ErrInvalidLimit)
}
