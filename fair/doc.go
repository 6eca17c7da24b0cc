// Package fair shares one rate among tenants, in proportion to their weights: for a service that passes its tenants' calls
// on under one limit.
//
//		limiter, err := fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), &fair.Options[string]{
//			Weight: func(tenant string) int { return plans[tenant].Weight },
//		})
//		…
//		d, err := limiter.Take(ctx, tenant, 1) // at once: yes, or no with a RetryAfter
//		err = limiter.Wait(ctx, tenant, 1)     // in line
//
//	  - The total is exact: over any time t, all tenants together spend at most burst + rate·t. While anybody is denied, the
//	    rate is spent in full.
//	  - Tenants that want more than their share get shares in proportion to their weights, within one cost and the burst.
//	    A tenant that wants less gets all of it, if the burst is large enough: see the README.
//	  - A tenant that is alone gets four fifths of the burst at once, and then the whole rate.
//	  - A large cost, above about burst / active tenants, should Wait: Take denies it while others take all they can.
//
// As tenants, use names that cost something, such as accounts: each invented name would get a share.
//
// All tenants share one lock. A decision takes up to 2.5 times that of [ratelimit.Keyed].
package fair
