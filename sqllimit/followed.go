package sqllimit

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/estimates"
	"github.com/weir-go/ratelimit/internal/meter"
)

// A key's row has the sum of the estimates of its open reservations, if the calls that made them follow the spending of their keys, as
// requests of package policy do whose rules notify. Other calls keep it. It counts in the window that it was added up in, under the limits
// that have windows, and is at most what is spent.
type openSum struct{ window, sum int64 }

// followed is the answer of a correction that is followed: the spending and the sum before and after it, and how the key stands then.
type followed struct {
	gone                  bool // the key has no spending, and nothing was corrected
	before                int64
	openBefore, openAfter int64
	after                 ratelimit.Decision
}

// windowOf returns what distinguishes a state's window from others, 0 for limits without windows.
func windowOf(p *plan, s *meter.State) int64 {
	switch p.limit.Algorithm {
	case ratelimit.AlgorithmFixedWindow:
		return s.At
	case ratelimit.AlgorithmCalendar:
		return s.M
	}
	return 0
}

// spent returns what a key has spent, and the sum of its open estimates, by a state as of now.
func (a *account) spent(p *plan, s *meter.State) (spent, open int64) {
	p.meter.Refresh(s)
	remaining, debt, _ := p.meter.Standing(*s, a.now)
	spent = meter.Add(max(0, int64(p.limit.Capacity())-remaining), debt)
	if a.open.sum > 0 && !p.meter.Holds() && a.open.window == windowOf(p, s) {
		open = min(a.open.sum, spent)
	}
	return spent, open
}

// setOpen replaces the sum of the key's open estimates. The key's change is written anyway.
func (a *account) setOpen(sum int64) {
	if a.open = (openSum{}); sum > 0 {
		a.open = openSum{windowOf(a.plan, &a.meters), sum}
	}
}

// carryOut has an operation change the account, and answers what it follows.
func (a *account) carryOut(o *operation) error {
	if !o.follows {
		return o.do(a, o)
	}
	f, estimated := &o.followed, int64(0)
	if *f = (followed{}); a.plan != nil {
		f.before, f.openBefore = a.spent(a.plan, &a.meters)
		if sp := &o.spending; sp.Open && a.mark == o.mark && a.counted(sp) {
			estimated = sp.Cost
		}
	}
	edits := a.edits
	if err := o.do(a, o); err != nil {
		return err
	}
	if f.gone = a.plan == nil; f.gone {
		return nil
	}
	if a.edits > edits {
		a.open.window = windowOf(a.plan, &a.meters)
		spent, _ := a.spent(a.plan, &a.meters)
		a.setOpen(min(max(0, f.openBefore-estimated), spent))
	}
	_, f.openAfter = a.spent(a.plan, &a.meters)
	d := &f.after
	if d.Limit = a.plan.limit; d.Limit.Name == "" {
		d.Limit.Name = o.plan.limit.Name
	}
	remaining, debt, regained := a.plan.meter.Standing(a.meters, a.now)
	d.Remaining, d.Debt = int(min(remaining, math.MaxInt)), int(min(debt, math.MaxInt))
	d.ResetAfter = between(a.reading, max(a.now, regained))
	return nil
}

// counted reports whether the key's window is the one of a spending.
func (a *account) counted(sp *meter.Spending) bool {
	switch a.plan.limit.Algorithm {
	case ratelimit.AlgorithmFixedWindow:
		return sp.At >= a.meters.At
	case ratelimit.AlgorithmCalendar:
		return sp.Part == a.meters.M
	}
	return true
}

// readOpen reads the sum from a row's state, and returns the rest, nil if there is none.
func (a *account) readOpen(b []byte) []byte {
	window, n := binary.Varint(b)
	if n <= 0 {
		return nil
	}
	sum, m := binary.Uvarint(b[n:])
	if m <= 0 || sum > math.MaxInt64 {
		return nil
	}
	a.open = openSum{window, int64(sum)}
	return b[n+m:]
}

// appendTo appends the sum to a row's state.
func (o openSum) appendTo(b []byte) []byte {
	return binary.AppendUvarint(binary.AppendVarint(b, o.window), uint64(o.sum))
}

// watched makes the parts of a call follow the keys that its caller wants to follow.
func watched(ctx context.Context, parts []*part) *estimates.Watch {
	w := estimates.Of(ctx)
	if w == nil {
		return nil
	}
	for i, p := range parts {
		p.follows, p.charge = w.Keys[i].Wanted, i
	}
	return w
}

// fill fills in the answers of corrections.
func fill(w *estimates.Watch, parts []*part) {
	for _, p := range parts {
		if !p.follows {
			continue
		}
		k, f := &w.Keys[p.charge], &p.followed
		k.Answered, k.Before, k.OpenBefore, k.OpenAfter = true, f.before, f.openBefore, f.openAfter
		if k.After = nil; !f.gone {
			k.After = f.after
		}
	}
}
