// Package fair shares one rate among tenants, in proportion to their weights. For example, a
// service may pass its tenants' calls on to a server with one limit for all of them together.
//
//		limiter, err := fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 2500), &fair.Options[string]{
//			Weight: func(tenant string) int { return plans[tenant].Weight },
//		})
//		…
//		d, err := limiter.Take(ctx, tenant, 1)                            // at once: yes, or no with a RetryAfter
//		err = limiter.Wait(ctx, tenant, 1)                                // in line
//		res, err := limiter.Reserve(ctx, tenant, estimate, 20*time.Second) // in line, and settled later
//
//	  - The total is exact: over any time t, all tenants together are granted at most burst + rate·t. While a call is denied, at
//	    least 97 % of the rate is spent.
//	  - A tenant that wants more than its share must wait, or come back after RetryAfter, even if the others poll. With costs
//	    of up to a tenth of the burst it gets at least 97 % of its share, and with costs of up to half of the burst 90 %. If it
//	    comes back after whole seconds, the burst must be 2.5 seconds of the rate.
//	  - A tenant that wants less than its share gets all that it wants, if the burst is large enough: see the README.
//	  - A tenant that is alone gets four fifths of the burst at once, and then the whole rate.
//	  - A denied cost of at most half of the burst keeps a place in line, until 1.5 seconds after the time of RetryAfter. A larger
//	    cost should Wait: Take denies it while others take all they can.
//
// Use tenants that cost something to create, for example accounts. Otherwise
// a client could invent names, and each returning name would get a share.
//
// All tenants share one lock. A decision takes up to 2.5 times as long as by
// [ratelimit.Keyed], and 0.25 µs while thousands of tenants contend for each unit.
package fair
