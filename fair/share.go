package fair

import "time"

// fraction is what one unit of cost is divided into, so that shares by weight are whole numbers.
const (
	fractionBits = 20
	fraction     = 1 << fractionBits
)

// shares counts what each tenant owes: what it has spent and the rate has not given back. It has no
// lock and reads no clock.
//
// The debts are paid by a fluid server (generalized processor sharing: Parekh and Gallager 1993). It
// pays at the limit's rate, to all debtors at once, to each in proportion to its weight. The virtual
// time is what it has paid to a weight of 1. So a tenant's debt is (paid − virtual) × weight, where
// paid is the virtual time at which nothing is left, and does not change while others spend.
//
// Amounts are in 1/2^20 units, and virtual times in that for a weight of 1. What a division leaves
// over is kept and counted later, so the debts add up to what is owed in all.
type shares[K comparable] struct {
	units, per uint64 // the rate is units for each per ns, in lowest terms
	now        int64
	virtual    uint64 // it wraps round: only differences mean something

	debtors []*tenant[K] // a heap by due; all of them are paid after virtual
	weights uint64       // of the debtors

	restOfTime uint64 // of a division by per
	restOfWork uint64 // of a division by weights
}

// tenant is one tenant's account.
type tenant[K comparable] struct {
	key    K
	weight uint64
	paid   uint64 // the virtual time at which the debt is paid
	due    uint64 // when to look whether it is: paid, or earlier if it has spent since
	rest   uint64 // what was charged and was too little to move paid: below weight
	place  int    // among the debtors, or −1

	// told is the virtual time that was announced in a denial, if toldCost is above 0. A cost up to
	// toldCost does not have to pass the tenant's share then.
	told     uint64
	toldCost int64

	line line // its callers who wait

	next, prev *tenant[K] // in the list of those that owe nothing and have no waiters
	idleSince  int64
}

// after returns how far one virtual time is after another, or 0.
func after(a, b uint64) uint64 {
	if d := int64(a - b); d > 0 {
		return uint64(d)
	}
	return 0
}

// advance lets the server pay until an instant. It calls freed for each tenant that owes nothing then.
func (s *shares[K]) advance(now int64, freed func(*tenant[K])) {
	if now <= s.now {
		return
	}
	elapsed := uint64(now - s.now)
	s.now = now
	if len(s.debtors) == 0 {
		return
	}
	paying, rest := product(elapsed, s.units).parts().plus(s.restOfTime).over(s.per)
	s.restOfTime = rest
	s.pay(paying, freed)
}

// pay lets the server pay an amount.
func (s *shares[K]) pay(paying uint64, freed func(*tenant[K])) {
	if len(s.debtors) == 0 {
		return
	}
	paying += s.restOfWork
	for {
		first := s.debtors[0]
		need := product(first.due-s.virtual, s.weights)
		if need.hi > 0 || need.lo > paying {
			s.virtual += paying / s.weights
			s.restOfWork = paying % s.weights
			return
		}
		if first.due != first.paid {
			s.first()
			continue
		}
		paying -= need.lo
		s.virtual = first.paid
		s.free(first)
		freed(first)
		if len(s.debtors) == 0 {
			return
		}
	}
}

// first returns the debtor whose debt is paid next.
func (s *shares[K]) first() *tenant[K] {
	for {
		t := s.debtors[0]
		if t.due == t.paid {
			return t
		}
		t.due = t.paid
		s.down(0)
	}
}

// free removes a debtor: what it owes is paid, or is not counted any more.
func (s *shares[K]) free(t *tenant[K]) {
	s.remove(t.place)
	t.place, t.rest = -1, 0
	s.weights -= t.weight
	if len(s.debtors) == 0 {
		s.restOfTime, s.restOfWork = 0, 0
	}
}

// owes returns how far a tenant's debt is from being paid, in virtual time.
func (s *shares[K]) owes(t *tenant[K]) uint64 {
	if t.place < 0 {
		return 0
	}
	return t.paid - s.virtual
}

// lead returns how far the virtual time is from a tenant's tag for a cost: the time at which its
// debt would be paid if it spent that too.
func (s *shares[K]) lead(t *tenant[K], cost int64) uint64 {
	return min(s.owes(t)+(uint64(cost)<<fractionBits+t.rest)/t.weight, most)
}

// charge adds an amount to what a tenant owes. The tag of its first waiter moves with the debt.
func (s *shares[K]) charge(t *tenant[K], amount uint64) {
	t.toldCost = 0
	sum := amount + t.rest
	more := sum / t.weight
	t.line.tag += more
	s.owe(t, s.virtual+min(s.owes(t)+more, most), sum%t.weight)
}

// owe makes a tenant a debtor until a virtual time.
func (s *shares[K]) owe(t *tenant[K], paid, rest uint64) {
	switch {
	case after(paid, s.virtual) == 0:
		if t.place >= 0 {
			s.free(t)
		}
	case t.place < 0:
		t.paid, t.due, t.rest = paid, paid, rest
		s.weights += t.weight
		s.add(t)
	default:
		t.paid, t.rest = paid, rest
		if after(t.due, paid) > 0 {
			t.due = paid
			s.up(t.place)
		}
	}
}

// forgive takes an amount off what a tenant owes. The tag of its first waiter moves with the debt.
func (s *shares[K]) forgive(t *tenant[K], amount uint64) {
	if t.place >= 0 {
		less := min(amount/t.weight, s.owes(t))
		t.line.tag -= less
		s.owe(t, t.paid-less, 0)
	}
}

// reweigh gives a tenant another weight. What it owes stays, with and without its first waiter.
func (s *shares[K]) reweigh(t *tenant[K], weight uint64) {
	owes := product(s.owes(t), t.weight)
	debtor := t.place >= 0
	if debtor {
		s.free(t)
	}
	if lead := after(t.line.tag, s.virtual); lead > 0 {
		lead, _ = product(lead, t.weight).over(weight)
		t.line.tag = s.virtual + lead
	}
	t.weight, t.rest = weight, 0
	if debtor {
		ahead, rest := owes.over(weight)
		s.owe(t, s.virtual+ahead, rest)
	}
}

// among returns the number and the weights of the debtors, the tenant counted. So few as a few do
// not have all of the burst: the rest is kept for whoever comes.
func (s *shares[K]) among(t *tenant[K]) (n, weights uint64) {
	n, weights = uint64(len(s.debtors)), s.weights
	if t.place < 0 {
		n, weights = n+1, weights+t.weight
	}
	return max(n, fewTenants), weights
}

// fewTenants is how many tenants count at least. So a quarter of what a tenant holds stays free.
const fewTenants = 4

// alone reports whether nobody but the tenant owes anything.
func (s *shares[K]) alone(t *tenant[K]) bool {
	return len(s.debtors) == 0 || len(s.debtors) == 1 && t.place == 0
}

// fits reports whether a tag that is lead after the virtual time is within the tenant's share, with
// so much free of the burst. That is the rule of dynamic thresholds (Choudhury and Hahne 1998):
// nobody holds more, for its weight, than is free. With B the burst, Q the sum of all debts, w the
// tenant's weight, n and W the number and the weights of the debtors, a cost c passes if
//
//	Q + c ≤ B   and   (debt + c) / w × W ≤ (B − Q) × max(n, 4)
func (s *shares[K]) fits(t *tenant[K], lead, free uint64) bool {
	n, weights := s.among(t)
	return !product(free, n).less(product(lead, weights))
}

// largest returns the largest cost that fits.
func (s *shares[K]) largest(t *tenant[K], free uint64) int64 {
	n, weights := s.among(t)
	ahead, _ := product(free, n).over(weights)
	owes := s.owes(t)
	if ahead < owes {
		return 0
	}
	amount := product(ahead-owes+1, t.weight).minus(wide{lo: t.rest + 1})
	if amount.hi > 0 {
		return most >> fractionBits
	}
	return int64(amount.lo >> fractionBits)
}

// ifOthersSpend returns how much the server has to pay until a tag that is lead after the virtual
// time fits, if the others spend what is paid to them: no more is free than now, and only the
// tenant's own debt becomes less. It reports false if that never lets the tag fit.
func (s *shares[K]) ifOthersSpend(t *tenant[K], lead, free uint64) (amount, virtual uint64, ok bool) {
	n, weights := s.among(t)
	allowed, _ := product(free, n).over(weights)
	ahead := max(lead, allowed) - allowed
	return s.toReach(ahead), s.virtual + ahead, ahead <= s.owes(t)
}

// ifNobodySpends returns the same for the case that nobody spends: then what is free becomes more.
// The tag comes nearer only until it is lead − falls ahead: that of a cost that has not been asked
// for yet follows the virtual time once the debt is paid.
func (s *shares[K]) ifNobodySpends(t *tenant[K], lead, falls, free uint64) (amount, virtual uint64) {
	n, weights := s.among(t)
	room := product(free, n)
	// lead × weights − amount ≤ (free + amount) × n
	amount = product(lead, weights).minus(room).up(1 + n)
	if reach := s.toReach(falls); amount > reach {
		amount = max(reach, product(lead-falls, weights).minus(room).up(n))
	}
	return amount, s.virtual + min(falls, amount/weights+1)
}

// toReach returns how much the server has to pay until the virtual time is so far ahead, with the
// debtors of now.
func (s *shares[K]) toReach(ahead uint64) uint64 {
	need := product(ahead, s.weights).minus(wide{lo: s.restOfWork})
	if need.hi > 0 {
		return most
	}
	return min(need.lo, most)
}

// timeFor returns how long the server takes to pay an amount, rounded up.
func (s *shares[K]) timeFor(amount uint64) time.Duration {
	work := product(amount, s.per).minus(wide{lo: s.restOfTime})
	ns := wide{work.hi >> fractionBits, work.hi<<(64-fractionBits) | work.lo>>fractionBits}
	if work.lo&(fraction-1) != 0 {
		ns = ns.plus(1)
	}
	return time.Duration(ns.up(s.units))
}

// The heap of debtors, the one to look at next at the top. Who spends stays where it is: to move it each time would cost
// more than to look at it once too often.

func (s *shares[K]) less(i, j int) bool { return int64(s.debtors[i].due-s.debtors[j].due) < 0 }

func (s *shares[K]) swap(i, j int) {
	s.debtors[i], s.debtors[j] = s.debtors[j], s.debtors[i]
	s.debtors[i].place, s.debtors[j].place = i, j
}

func (s *shares[K]) add(t *tenant[K]) {
	t.place = len(s.debtors)
	s.debtors = append(s.debtors, t)
	s.up(t.place)
}

func (s *shares[K]) remove(i int) {
	last := len(s.debtors) - 1
	if i != last {
		s.swap(i, last)
	}
	s.debtors[last] = nil
	s.debtors = s.debtors[:last]
	if i != last {
		s.down(s.up(i))
	}
}

func (s *shares[K]) up(i int) int {
	for i > 0 {
		above := (i - 1) / 2
		if !s.less(i, above) {
			break
		}
		s.swap(i, above)
		i = above
	}
	return i
}

func (s *shares[K]) down(i int) {
	for {
		least := 2*i + 1
		if least >= len(s.debtors) {
			return
		}
		if right := least + 1; right < len(s.debtors) && s.less(right, least) {
			least = right
		}
		if !s.less(least, i) {
			return
		}
		s.swap(i, least)
		i = least
	}
}
