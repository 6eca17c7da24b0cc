package lease

import "github.com/weir-go/ratelimit"

// part is a cost's part from a key's batches, while the caller reserves the rest with the remote
// limiter. So a caller with a cost above the batch is not denied because its own process holds the
// units. The batches are not forfeited before the remote limiter has answered. The zero part is empty.
type part[K comparable] struct {
	claims[K]
	returns  *returns
	n        int  // units of all claims
	degraded bool // whether one of its batches is degraded
	spoken   bool // whether the remote limiter has allowed the rest; then the part is not put back
}

// setAside spends all of the process's units of a key on a cost. It leaves at least one unit of the cost to the
// remote limiter, which then decides. It spends nothing if the remote limiter has to decide on the whole cost.
func (l *Limiter[K]) setAside(key K, cost int) *part[K] {
	p := &part[K]{returns: l.fetcher.returns}
	h := l.table.find(key)
	if h == nil || cost <= 1 {
		return p
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.remoteState.limit == nil || h.remoteState.direct(cost) {
		return p
	}
	if p.n = min(cost-1, h.left); p.n > 0 {
		p.degraded = h.degradedLocked(p.n)
		h.claimLocked(p.n, &p.claims)
	}
	for _, c := range p.list {
		c.batch.direct++
	}
	return p
}

// decided records the remote limiter's decision on the rest of the cost, and returns the decision on the whole.
func (p *part[K]) decided(d ratelimit.Decision, err error) ratelimit.Decision {
	p.spoken = err == nil && d.Allowed
	if err != nil || p.n == 0 {
		return d
	}
	if !d.Allowed {
		d.Remaining, d.Debt = add(d.Remaining, p.n), max(0, d.Debt-p.n)
	}
	d.Degraded = d.Degraded || p.degraded
	return d
}

// end puts the whole part back, unless the remote limiter has allowed the rest. Then its batches may be forfeited.
func (p *part[K]) end() {
	if !p.spoken {
		p.returns.lose(p.release(p.n))
	}
	if p.h == nil {
		return
	}
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	for _, c := range p.list {
		c.batch.direct--
	}
	p.h.forfeitLocked(func(b *batch) bool { return b.late })
}

// close leaves the part spent if the remote limiter has allowed the rest.
func (p *part[K]) close() {
	if p.spoken {
		p.release(0)
	}
}

// settle replaces the estimated cost by the actual one. A refund goes to the remote limiter first.
func (p *part[K]) settle(rest *ratelimit.Reservation, actual int) error {
	p.returns.lose(p.release(max(0, p.n-actual)))
	return rest.Settle(max(0, actual-p.n))
}
