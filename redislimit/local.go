package redislimit

import "github.com/weir-go/ratelimit"

// Local returns a limiter in memory with the settings of l, for package failover: see [ratelimit.Layered.Local].
func (l *Limiter) Local(share func(ratelimit.Limit) ratelimit.Limit, maxKeys int) (*ratelimit.Keyed[string], error) {
	l.check()
	o := &ratelimit.Options[string]{MaxKeys: maxKeys, OnDecision: l.onDecision}
	if l.limitFor != nil {
		o.LimitFor = func(key string) ratelimit.Limit { return share(l.limitFor(key)) }
	}
	return ratelimit.New(share(l.plan.Load().limit), o)
}
