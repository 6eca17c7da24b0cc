// Package fair shares one rate among tenants, in proportion to their weights. It is for a service that
// passes its tenants' calls on under one limit of its own: one key of an LLM provider, one partner's
// API, one database.
//
//	limiter, err := fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), &fair.Options[string]{
//		Weight: func(tenant string) int { return plans[tenant].Weight },
//	})
//	…
//	d, err := limiter.Take(ctx, tenant, 1) // at once: yes, or no with a RetryAfter
//	err = limiter.Wait(ctx, tenant, 1)     // in line
//
// A bucket that all tenants share gives most to the tenant that asks most. A bucket for each tenant
// wastes what the others leave. This limiter gives each tenant its share, and what nobody wants to those
// who want more.
//
// # What is promised
//
//   - The total is exact: over any time t, at most burst + rate·t is spent by all tenants together.
//   - While anybody is denied, the rate is spent in full.
//   - Tenants that want more than their share get it in proportion to their weights, within one cost
//     and what the burst lets pass. A tenant that wants less than its share is served, if the burst
//     is large enough: at 8 costs for each active tenant, one that asks for half of its share beside
//     50 that poll is denied 1 call in 5,000; at 2 costs, 1 in 10; at 1 cost, 1 in 3.
//   - A tenant that is alone gets four fifths of the burst at once, and then the whole rate. The rest
//     of the burst is kept for whoever comes.
//   - A denial tells a RetryAfter that is kept as [Limiter.Take] says.
//   - A large cost, above about burst / active tenants, does not pass by Take while others take all
//     they can. Wait serves it in its turn.
//
// Names that a stranger can make up are no tenants: each would get a share. Use as key what costs
// something: an account, a contract.
//
// # How it decides
//
// What tenants have spent, and the rate has not given back, are debts. A server pays them at the
// limit's rate, all of them at once, by weight: the generalized processor sharing of Parekh and
// Gallager (1993). With B the burst, Q the sum of all debts, w the tenant's weight, n and W the number
// and the weights of all tenants with a debt, a cost c passes if
//
//	Q + c ≤ B   and   (debt + c) / w × W ≤ (B − Q) × max(n, 4)
//
// So no tenant holds more, for its weight, than is still free. This is the idea of dynamic thresholds
// for the memory of a switch (Choudhury and Hahne, 1998). Debts are counted in 1/2^20 of a unit, the
// total exactly.
//
// # Cost
//
// All tenants share one lock, and a decision is O(log of the tenants in debt). It takes about twice the
// time of a decision by [ratelimit.Keyed], and does not allocate for a tenant that is tracked.
package fair
