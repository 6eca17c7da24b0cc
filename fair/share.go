package fair

import "time"

// shares holds each tenant's debt: spending not yet paid for by the
// tenant's share of the rate. It has no lock and reads no clock.
//
// A fluid server pays the debts (generalized processor sharing: Parekh and Gallager 1993). It pays at the
// limit's rate, to all counting tenants at the same time, in proportion to their weights. The virtual
// time is the server's payment to a weight of 1. So a tenant's debt is (finish − virtual) × weight, where
// finish is the virtual time when the debt is paid. The finish does not change while others spend.
//
// A tenant counts while it has a debt or is in line. In line, its finish stays when the virtual time passes
// it. Then the debt is negative: the tenant has savings. When a tenant stops counting, it leaves its savings
// to the others. The total's debt is the sum of the debts and the common debt, less savings and surplus.
//
// Amounts are in 1/2^20 units, and virtual times in such amounts for a
// weight of 1. The remainders of divisions are kept, so no amount is lost.
type shares[K comparable] struct {
	units, per uint64 // the rate is units for each per ns, in lowest terms
	now        int64
	virtual    uint64 // wraps round: only differences have a meaning

	count   int    // counting tenants
	weights uint64 // their weights
	// tenants counting because of a debt, by due; when one spends or joins the line, it
	// keeps its position, because a superfluous check costs less than each move would
	debtors heap[K]
	surplus uint64 // savings left to the others, not yet paid by the server
	common  uint64 // debts taken from tenants by relieve, not yet paid by the server; either common or surplus is 0

	restOfTime uint64 // a division's remainder by per
	restOfWork uint64 // a division's remainder by weights

	restOfCommon uint64 // a division's remainder by 100
}

// after returns how far one virtual time is after another, or 0.
func after(a, b uint64) uint64 {
	if d := int64(a - b); d > 0 {
		return uint64(d)
	}
	return 0
}

// advance lets the server pay until an instant. It calls left for each tenant when it stops counting.
func (s *shares[K]) advance(now int64, left func(*tenant[K])) {
	if now <= s.now {
		return
	}
	elapsed := uint64(now - s.now)
	s.now = now
	if s.count == 0 && s.common == 0 {
		s.surplus = 0
		return
	}
	paying, rest := product(elapsed, s.units).parts().plus(s.restOfTime).over(s.per)
	s.restOfTime = rest
	paying -= s.payCommon(paying)
	extra := min(s.surplus, paying) // at most the rate, so tenants with little debt can use the surplus
	s.surplus -= extra
	s.pay(min(paying+extra, most), left)
}

// payCommon pays a part of the common debt, and returns the amount. While n tenants count, it uses (n + 1) % of the
// rate, at most half the rate. While no tenant counts, it uses the whole rate. Meanwhile the tenants' debts last longer,
// so the tenants are granted less: one unit less for n + 1 units of the common debt. So 99 % of the rate is granted.
func (s *shares[K]) payCommon(paying uint64) uint64 {
	if s.common == 0 {
		return 0
	}
	part := paying
	if s.count > 0 {
		percent := min(uint64(max(s.count, fewTenants))+1, 50)
		part, s.restOfCommon = product(paying, percent).plus(s.restOfCommon).over(100)
		part = min(part, paying)
	}
	part = min(part, s.common)
	s.common -= part
	return part
}

// relieve bounds the debt of a tenant in line. Let B be the burst, W the sum of the weights in line, and w and c the
// tenant's weight and cost. The tenant owes at most
//
//	the tag of the first other tenant in line  +  B / W  +  2·c / w
//
// in virtual time. Hardly any tenant in line owes more, because the line is served in the order of tags, and the sum of all
// debts is within the burst. A tenant with a larger debt has used rate without other demand at the time. The excess becomes
// a common debt, so such use bars a tenant for at most one RefillTime and two costs. The bound is the start tag of
// start-time fair queueing (Goyal, Vin and Cheng 1996), with the burst added. relieve reports whether the debt has changed.
func (s *shares[K]) relieve(t *tenant[K], burst, weights, first uint64) bool {
	if !t.counts || s.isBarred(t) {
		return false
	}
	bound := after(first, s.virtual) + burst<<fractionBits/weights + 2*after(t.tag, t.finish)
	over := after(t.finish, s.virtual+bound)
	if over == 0 {
		return false
	}
	t.finish -= over
	t.tag -= over
	s.owed(over * t.weight)
	s.settleIn(t)
	return true
}

// owed adds an amount to the common debt. The surplus pays first.
func (s *shares[K]) owed(amount uint64) {
	paid := min(s.surplus, amount)
	s.surplus -= paid
	s.common = min(s.common+amount-paid, most)
}

// save adds an amount to the surplus. The amount pays the common debt first.
func (s *shares[K]) save(amount uint64) {
	paid := min(s.common, amount)
	s.common -= paid
	s.surplus = min(s.surplus+amount-paid, most)
}

// pay makes the server pay an amount.
func (s *shares[K]) pay(paying uint64, left func(*tenant[K])) {
	if s.count == 0 {
		s.common -= min(s.common, paying)
		return
	}
	paying += s.restOfWork
	for s.debtors.len() > 0 {
		first := s.debtors.first()
		need := product(first.due-s.virtual, s.weights)
		if need.hi > 0 || need.lo > paying {
			break
		}
		switch {
		case first.inLine(): // the tenant counts until it leaves the line
			s.debtors.remove(first)
		case first.due != first.finish:
			first.due = first.finish
			s.debtors.fix(first, first.due)
		default:
			paying -= need.lo
			s.virtual = first.finish
			s.leave(first)
			left(first)
			if s.count == 0 {
				s.common -= min(s.common, paying)
				return
			}
		}
	}
	s.virtual += paying / s.weights
	s.restOfWork = paying % s.weights
}

// enter makes a tenant count.
func (s *shares[K]) enter(t *tenant[K]) {
	if !t.counts {
		t.counts, t.finish, t.rest = true, s.virtual, 0
		s.count++
		s.weights += t.weight
	}
}

// leave makes a tenant stop counting. Its savings go to the others, and a debt is forgotten.
func (s *shares[K]) leave(t *tenant[K]) {
	if !t.counts {
		return
	}
	if saved, _ := product(after(s.virtual, t.finish), t.weight).over(1); saved > 0 {
		s.save(saved)
	}
	if s.debtors.has(t) {
		s.debtors.remove(t)
	}
	t.counts, t.rest = false, 0
	s.count--
	s.weights -= t.weight
	if s.count == 0 {
		s.surplus, s.restOfTime, s.restOfWork = 0, 0, 0
	}
}

// settleIn files a tenant after a change of its debt or of its place in
// line. A tenant with a debt or in line goes on counting; another one stops.
func (s *shares[K]) settleIn(t *tenant[K]) {
	switch owes := t.counts && after(t.finish, s.virtual) > 0; {
	case !t.counts:
	case owes && !s.debtors.has(t) && !t.inLine():
		t.due = t.finish
		s.debtors.add(t, t.due)
	case owes && s.debtors.has(t) && after(t.due, t.finish) > 0:
		t.due = t.finish
		s.debtors.fix(t, t.due)
	case !owes && t.inLine() && s.debtors.has(t):
		s.debtors.remove(t)
	case !owes && !t.inLine():
		s.leave(t)
	}
}

// owes returns the virtual time until a tenant's debt is paid.
func (s *shares[K]) owes(t *tenant[K]) uint64 {
	if !t.counts {
		return 0
	}
	return after(t.finish, s.virtual)
}

// base returns the virtual time at which a tenant's next cost begins to count.
func (s *shares[K]) base(t *tenant[K]) uint64 {
	base := s.virtual
	if t.counts {
		base = t.finish
	}
	if s.isBarred(t) && after(t.barredTo, base) > 0 {
		base = t.barredTo
	}
	return base
}

func (s *shares[K]) isBarred(t *tenant[K]) bool {
	t.barred = t.barred && after(t.barredTo, s.virtual) > 0
	return t.barred
}

// tag returns the virtual time when a tenant's debt would be paid if the tenant spent cost. The line is sorted by tags.
func (s *shares[K]) tag(t *tenant[K], cost int64) uint64 {
	return s.base(t) + (uint64(cost)<<fractionBits+t.rest)/t.weight
}

// lead returns how far a tag is ahead of the virtual time.
func (s *shares[K]) lead(tag uint64) uint64 { return min(after(tag, s.virtual), most) }

// charge adds an amount to a tenant's debt. Its tag in line moves with the debt.
func (s *shares[K]) charge(t *tenant[K], amount uint64) {
	s.enter(t)
	sum := amount + t.rest
	more := min(sum/t.weight, most-min(s.owes(t), most))
	t.finish, t.rest = t.finish+more, sum%t.weight
	t.tag += more
	s.settleIn(t)
}

// forgive subtracts an amount from a tenant's debt, and returns the subtracted part. Its tag in line moves with the debt.
func (s *shares[K]) forgive(t *tenant[K], amount uint64) uint64 {
	less := min(amount/t.weight, s.owes(t))
	if t.counts {
		t.finish -= less
		t.tag -= less
		s.settleIn(t)
	}
	return less * t.weight
}

// reweigh changes a tenant's weight. Its debt or its savings stay, with and without the cost at its line's head.
func (s *shares[K]) reweigh(t *tenant[K], weight uint64) {
	scale := func(at, rest uint64) (uint64, uint64) {
		if ahead := after(at, s.virtual); ahead > 0 {
			ahead, rest = product(ahead, t.weight).plus(rest).over(weight)
			return s.virtual + ahead, rest
		}
		behind, _ := product(after(s.virtual, at), t.weight).over(weight)
		return s.virtual - behind, 0
	}
	t.tag, _ = scale(t.tag, 0)
	t.barredTo, _ = scale(t.barredTo, 0)
	if t.counts {
		t.finish, t.rest = scale(t.finish, t.rest)
		s.weights += weight - t.weight
	}
	t.weight = weight
	s.settleIn(t)
}

// lower scales a tenant's debt or savings by counted/total, as a lowered limit
// scales the total. The tenant's tag in line and its overrun move with the debt.
func (s *shares[K]) lower(t *tenant[K], total, counted uint64) {
	if !t.counts {
		return
	}
	if behind := after(s.virtual, t.finish); behind > 0 {
		less, _ := product(behind, counted).over(total)
		t.tag += behind - less
		t.finish = s.virtual - less
	} else {
		ahead := after(t.finish, s.virtual)
		less, _ := product(ahead, counted).over(total)
		off := ahead - less
		t.finish, t.tag, t.barredTo = t.finish-off, t.tag-off, t.barredTo-off
	}
	t.rest = 0
	s.settleIn(t)
}

// among returns the number and the weights of the counting tenants, including t.
func (s *shares[K]) among(t *tenant[K]) (n, weights uint64) {
	n, weights = uint64(s.count), s.weights
	if !t.counts {
		n, weights = n+1, weights+t.weight
	}
	return max(n, fewTenants), weights
}

// alone reports whether no other tenant counts.
func (s *shares[K]) alone(t *tenant[K]) bool { return s.count == 0 || s.count == 1 && t.counts }

// fits reports whether a tag is within the tenant's share. lead is the tag's distance from the virtual time,
// and free the unused part of the burst. The rule comes from dynamic thresholds (Choudhury and Hahne 1998):
// in proportion to its weight, no tenant holds more than is free. Let B be the burst, Q the sum of all debts,
// w the tenant's weight, n the number of counting tenants and W the sum of their weights. A cost c passes if
//
//	Q + c ≤ B   and   (debt + c) / w × W ≤ (B − Q) × max(n, 4)
func (s *shares[K]) fits(t *tenant[K], lead, free uint64) bool {
	n, weights := s.among(t)
	return !product(free, n).less(product(lead, weights))
}

// threshold returns the largest fitting lead.
func (s *shares[K]) threshold(t *tenant[K], free uint64) uint64 {
	n, weights := s.among(t)
	lead, _ := product(free, n).over(weights)
	return lead
}

// largest returns the largest cost whose tag is at most lead after the virtual time.
func (s *shares[K]) largest(t *tenant[K], lead uint64) int64 {
	base := s.base(t)
	lead += after(s.virtual, base)
	owes := after(base, s.virtual)
	if lead < owes {
		return 0
	}
	amount := product(lead-owes+1, t.weight).minus(wide{lo: t.rest + 1})
	if amount.hi > 0 {
		return most >> fractionBits
	}
	return int64(amount.lo >> fractionBits)
}

// untilFits returns the server's payment until the tenant's tag fits, if nothing is spent before. lead is the
// tag's distance from the virtual time. As the server pays, the free part of the burst grows and lead shrinks.
func (s *shares[K]) untilFits(t *tenant[K], lead, free uint64) uint64 {
	n, weights := s.among(t)
	return product(lead, weights).minus(product(free, n)).up(1 + n)
}

// toReach returns the server's payment until the virtual time has advanced by ahead, if the same tenants count.
func (s *shares[K]) toReach(ahead uint64) uint64 {
	need := product(ahead, s.weights).minus(wide{lo: s.restOfWork})
	if need.hi > 0 {
		return most
	}
	return min(need.lo, most)
}

// toPayAlone returns the server's payment until the virtual time has
// advanced by ahead, if a barred tenant counts only until its debt is paid.
func (s *shares[K]) toPayAlone(t *tenant[K], ahead uint64) uint64 {
	counted := min(s.owes(t), ahead)
	others := s.weights
	if t.counts {
		others -= t.weight
	}
	return min(s.toReach(counted)+product(ahead-counted, others).up(1), most)
}

// timeFor returns the time to regain an amount, rounded up.
func (s *shares[K]) timeFor(amount uint64) time.Duration {
	work := product(amount, s.per).minus(wide{lo: s.restOfTime})
	ns := wide{work.hi >> fractionBits, work.hi<<(64-fractionBits) | work.lo>>fractionBits}
	if work.lo&(fraction-1) != 0 {
		ns = ns.plus(1)
	}
	return time.Duration(ns.up(s.units))
}

// soonest returns the tenant whose debt is paid next, or nil.
func (s *shares[K]) soonest() *tenant[K] {
	for s.debtors.len() > 0 {
		switch t := s.debtors.first(); {
		case t.inLine():
			s.debtors.remove(t)
		case t.due == t.finish:
			return t
		default:
			t.due = t.finish
			s.debtors.fix(t, t.due)
		}
	}
	return nil
}
