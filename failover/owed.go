package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/owed"
)

// repayer is a stand-in. It records its spending during an outage, and charges the store itself.
type repayer interface {
	// Repay charges the store with the spending that still counts. It is called
	// after the primary's decisions, at most once a second, until it returns nil.
	Repay(ctx context.Context) error
}

// debts is the stand-in's spending while the primary was down, until the primary is charged with it.
type debts[K any] struct {
	primary ratelimit.Limiter[K]
	limit   ratelimit.Limit   // the primary's limit, if it is the only one and known
	ledger  *owed.Ledger[any] // the debts of keys; nil if the stand-in records its own, or if the primary cannot be charged
	own     repayer           // the stand-in, if it records its own debts
	timeout time.Duration     // bounds a charge
	log     *slog.Logger
	open    atomic.Bool // whether there may be a debt
	made    time.Time
	next    atomic.Int64 // the earliest time of the next repayment, in nanoseconds since made
}

// newDebts returns a stand-in's debts. It records none in three cases. The keys are requests, so no
// two are equal. The primary has several limits, with different counts. Or the primary has no Adjust.
func newDebts[K any](primary, instead ratelimit.Reserver[K], o *Options) *debts[K] {
	d := &debts[K]{primary: primary, timeout: o.Timeout, log: o.logger(), made: time.Now()}
	if own, ok := instead.(repayer); ok {
		d.own = own
		return d
	}
	limits := ratelimit.Describe(primary).Limits
	_, adjusts := primary.(ratelimit.Adjuster[K])
	if len(limits) > 1 || len(ratelimit.Describe(instead).Limits) > 1 || !adjusts || !isKey(reflect.TypeFor[K]()) {
		return d
	}
	d.limit, d.ledger = only(limits), owed.New[any](nil)
	return d
}

// isKey reports whether two values of a type can be equal, as keys are.
// Two requests never are, because they are pointers or interfaces.
func isKey(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.UnsafePointer, reflect.Interface, reflect.Chan:
		return false
	}
	return t.Comparable()
}

// uncharged reports whether the primary has certainly not charged a cost, given its call's ending.
func (o ending) uncharged() bool { return o == unavailable || o == busy || o == shut }

// within returns the context for a decision of the stand-in. The
// context records whether the primary may have charged the cost.
func (d *debts[K]) within(ctx context.Context, why ending) context.Context {
	if d.own != nil && !why.uncharged() {
		return owed.Uncertain(ctx)
	}
	return ctx
}

// charged records the debt for an answer of the stand-in. A reservation owes its real cost, recorded when it is settled.
func (d *debts[K]) charged(key K, cost int, why ending, a *answer) {
	if a.err != nil || !a.decision.Allowed || d.own == nil && (d.ledger == nil || !why.uncharged()) {
		return
	}
	owe := func(units int) {
		if d.ledger != nil {
			limit := a.decision.Limit
			if limit.Algorithm == 0 || limit.Algorithm == ratelimit.AlgorithmUnlimited {
				limit = d.limit
			}
			d.ledger.Charge(key, units, limit)
		}
		d.open.Store(true)
	}
	if a.res == nil {
		owe(cost)
	} else {
		a.owe = owe
	}
}

// repay charges the primary with the debts in the background, at
// most once a second. It is called after decisions of the primary.
func (d *debts[K]) repay() {
	if !d.open.Load() {
		return
	}
	now, next := int64(time.Since(d.made)), d.next.Load()
	if now < next || !d.next.CompareAndSwap(next, now+int64(time.Second)) {
		return
	}
	d.open.Store(false)
	go func() {
		err := d.pay()
		switch {
		case errors.Is(err, ratelimit.ErrUnavailable):
			d.open.Store(true)
		case err != nil:
			d.log.Warn("failover: the primary was not charged with all that its stand-in let pass", "error", err)
		}
	}()
}

// pay charges the primary with the debts.
func (d *debts[K]) pay() error {
	if d.own != nil {
		return d.own.Repay(noContext)
	}
	return d.ledger.Repay(noContext, func(ctx context.Context, key any, units int) error {
		if d.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, d.timeout)
			defer cancel()
		}
		a := guarded(ctx, func(ctx context.Context) answer { return answer{err: ratelimit.Adjust(ctx, d.primary, key.(K), units)} })
		if judgeBy(ctx, a).instead() {
			return fmt.Errorf("%w: %w", a.err, ratelimit.ErrUnavailable)
		}
		return a.err
	})
}
