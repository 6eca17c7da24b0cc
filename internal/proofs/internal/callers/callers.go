// Package callers measures decisions by many concurrent callers, for benchmarks that compare engines.
package callers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/ratelimit"
)

// Take charges one unit to an engine's key.
type Take func(ctx context.Context, key string) (allowed bool, err error)

// Cases returns limits by Name, each with the number of keys for
// the calls. One limit is reached at once, and the others never.
func Cases() []Case {
	all := []Case{{name: "one key, allowed", most: 1 << 30, keys: 1}, {name: "1000 keys, allowed", most: 1 << 30, keys: 1000}, {name: "one key, denied", most: 1, keys: 1}}
	for i, c := range all {
		all[i].Limit = ratelimit.TokenBucket(ratelimit.Per(c.most, 24*time.Hour), c.most).Named(fmt.Sprintf("b%d-%d", c.most, c.keys))
	}
	return all
}

// Case is a limit, and its benchmark's calls.
type Case struct {
	Limit ratelimit.Limit

	name string
	most int
	keys int64
}

// Measure runs 16 callers on an engine, as a sub-benchmark named by the case and the engine.
func (c Case) Measure(b *testing.B, engine string, take Take) {
	b.Run(c.name+"/"+engine, func(b *testing.B) {
		var n, allowed atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
					ok, err := take(context.Background(), fmt.Sprint(i%c.keys))
					if err != nil {
						b.Error(err)
						return
					}
					if ok {
						allowed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if c.most > 1 && allowed.Load() < int64(b.N) {
			b.Errorf("%d of %d were allowed", allowed.Load(), b.N)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
	})
}
