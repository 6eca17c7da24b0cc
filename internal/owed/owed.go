// Package owed records the units allowed by a stand-in while a store is down. Afterwards the store
// is charged with the units that still count, perhaps fewer. For example, under a limit per minute
// it is charged with at most a minute's spending, and under a monthly quota with the whole spending.
package owed

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/weir-go/ratelimit"
)

// maxKeys is the maximum number of keys whose debt a Ledger records.
// Beyond it, the debt of the least recently used key is forgiven.
const maxKeys = 1 << 16

// Ledger records the keys' units owed to a store. It counts under the limits of the stand-in's
// decisions, so it forgets units once these limits have regained them. It is safe for concurrent use.
type Ledger[K comparable] struct {
	keys   *ratelimit.Keyed[K]
	stack  *ratelimit.Layered[debt[K]]
	owing  atomic.Bool
	paying atomic.Bool
}

// debt identifies a charge: a key under a limit.
type debt[K comparable] struct {
	key   K
	limit ratelimit.Limit
}

// New returns an empty ledger. The clock may be nil.
func New[K comparable](clock ratelimit.Clock) *Ledger[K] {
	keys, err := ratelimit.New(ratelimit.Unlimited(), &ratelimit.Options[K]{MaxKeys: maxKeys, Clock: clock})
	if err != nil {
		panic(err) // the options are valid
	}
	layer := ratelimit.By(keys, func(d debt[K]) (K, error) { return d.key, nil })
	layer.Limit = func(d debt[K]) ratelimit.Limit { return d.limit }
	stack, err := ratelimit.All(layer)
	if err != nil {
		panic(err)
	}
	return &Ledger[K]{keys: keys, stack: stack}
}

// Charge records a key's spending under a limit of the stand-in. If units are held until a
// call ends, as under [ratelimit.Concurrent], they come back by themselves and are not owed.
func (l *Ledger[K]) Charge(key K, cost int, limit ratelimit.Limit) {
	switch limit.Algorithm {
	case 0, ratelimit.AlgorithmConcurrent, ratelimit.AlgorithmUnlimited, ratelimit.AlgorithmBlocked:
		return
	}
	if cost > 0 && l.stack.Adjust(context.Background(), debt[K]{key, limit}, cost) == nil {
		l.owing.Store(true)
	}
}

// Owing reports whether a key may owe something.
func (l *Ledger[K]) Owing() bool { return l.owing.Load() }

// Repay charges the store with each key's units, as far as they still count. An error wrapping
// [ratelimit.ErrUnavailable] ends it, and the remaining units stay owed. After any other error the key owes
// nothing, because the charge would fail again. If another call to Repay is running, Repay does nothing.
func (l *Ledger[K]) Repay(ctx context.Context, charge func(ctx context.Context, key K, units int) error) error {
	if !l.owing.Load() || !l.paying.CompareAndSwap(false, true) {
		return nil
	}
	defer l.paying.Store(false)
	l.owing.Store(false)
	var errs []error
	for key, d := range l.keys.All() {
		if d.Limit.Algorithm == ratelimit.AlgorithmUnlimited {
			continue // forgiven or repaid
		}
		units := d.Limit.Capacity() - d.Remaining + d.Debt
		if units <= 0 {
			continue
		}
		err := charge(ctx, key, units)
		if errors.Is(err, ratelimit.ErrUnavailable) {
			l.owing.Store(true)
			return err
		}
		if err != nil {
			errs = append(errs, err)
		}
		_ = l.stack.Adjust(ctx, debt[K]{key, d.Limit}, -units) // units spent meanwhile stay owed
	}
	if len(errs) > 0 {
		return fmt.Errorf("%d keys could not be charged, for example: %w", len(errs), errs[0])
	}
	return nil
}

type uncertain struct{}

// Uncertain returns a context for a decision of a stand-in. It records that the store may have charged the cost already.
func Uncertain(ctx context.Context) context.Context { return context.WithValue(ctx, uncertain{}, true) }

// IsUncertain reports whether the store may have charged a decision's cost. Such a cost is not owed.
func IsUncertain(ctx context.Context) bool {
	is, _ := ctx.Value(uncertain{}).(bool)
	return is
}
