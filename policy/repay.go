package policy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/owed"
)

// debts records the spending under an [Options.StandIn], by rule, until its own policies are charged with it.
type debts struct {
	to creditor

	mu    sync.Mutex
	rules map[string]*owed.Ledger[debtor] // by the rule's id
}

// creditor is the policies to charge with their stand-in's debts.
type creditor interface {
	now() *generation
	adjust(ctx context.Context, g *generation, c *charges, delta int) error
}

// debtor is a key of a rule, with its limit at the creditor.
type debtor struct {
	key   string
	limit ratelimit.Limit
}

// debt is the spending of one charge allowed by the stand-in.
type debt struct {
	ledger *owed.Ledger[debtor]
	debtor
	cost  int
	fixed bool            // whether the rule has its own cost, refunded only if the reservation is cancelled
	real  *int            // returns the real cost, if the rule determines it; else nil
	share ratelimit.Limit // the stand-in's limit
}

// of returns the debts of a stand-in's decision. Keys with a common limit
// owe nothing, because a charge would take no budget from a later call.
func (b *debts) of(ctx context.Context, q *query, d *ratelimit.Decision, err error) (all []debt) {
	denied := err != nil || !d.Allowed
	if b == nil || q.answered() || owed.IsUncertain(ctx) || denied && (!q.in.always || err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit)) {
		return nil
	}
	lead := b.to.now()
	for i := range q.charges.List {
		ch := &q.charges.List[i]
		r := q.in.rules[ch.Rule]
		k := lead.position(r.id)
		if ch.Cost <= 0 || ch.Weight > 0 || k < 0 || !r.always() && (denied || slices.Contains(q.charges.denied, i)) {
			continue
		}
		whole, _ := lead.rules[k].limitOf(q.request, ch.Key)
		all = append(all, debt{b.ledger(r.id, q.in.decider.clock), debtor{ch.Key, *whole}, ch.Cost, ch.Fixed, nil, *ch.Limit})
		if r.settles() {
			all[len(all)-1].real = &ch.Real
		}
	}
	return all
}

// ledger returns a rule's ledger.
func (b *debts) ledger(id string, clock ratelimit.Clock) *owed.Ledger[debtor] {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.rules[id]
	if l == nil {
		l = owed.New[debtor](clock)
		b.rules[id] = l
	}
	return l
}

// record records an unsettled charge's debts.
func record(all []debt) {
	for i := range all {
		all[i].record(all[i].cost)
	}
}

func (d *debt) record(units int) { d.ledger.Charge(d.debtor, units, d.share) }

// owing returns a reservation. When it is settled, it adds its real cost to the debts. A denied reservation is never settled.
func owing(all []debt, inner *ratelimit.Reservation) *ratelimit.Reservation {
	if len(all) == 0 {
		return inner
	}
	if !inner.Allowed {
		record(all)
		return inner
	}
	return settledAs(inner, func(actual int) error {
		err := inner.Settle(actual)
		for i := range all {
			switch d := &all[i]; {
			case err != nil:
			case d.real != nil && actual > 0:
				d.record(*d.real)
			case !d.fixed:
				d.record(actual)
			case actual > 0:
				d.record(d.cost)
			}
		}
		return err
	})
}

// repay charges the creditor with all debts.
func (b *debts) repay(ctx context.Context) error {
	b.mu.Lock()
	ids := make([]string, 0, len(b.rules))
	for id := range b.rules {
		ids = append(ids, id)
	}
	b.mu.Unlock()
	var failed error
	for _, id := range ids {
		err := b.ledger(id, nil).Repay(ctx, func(ctx context.Context, k debtor, units int) error {
			g := b.to.now()
			i := g.position(id)
			if i < 0 {
				return nil // the rule was removed, and so were its budgets
			}
			return b.to.adjust(ctx, g, &charges{List: []charge{{Rule: i, Key: k.key, Cost: 1, Limit: &k.limit}}, Bare: true}, units)
		})
		failed = cmp.Or(failed, err)
		if err != nil && ctx.Err() != nil {
			break
		}
	}
	return failed
}
