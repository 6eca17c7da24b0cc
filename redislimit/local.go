package redislimit

import (
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit"
)

// local returns a limiter in memory with the settings of l.
func (l *Limiter) local(share func(ratelimit.Limit) ratelimit.Limit, maxKeys int) (*ratelimit.Keyed[string], error) {
	o := &ratelimit.Options[string]{MaxKeys: maxKeys, OnDecision: l.onDecision}
	if l.limitFor != nil {
		o.LimitFor = func(key string) ratelimit.Limit { return shared(share, l.limitFor(key)) }
	}
	return ratelimit.New(shared(share, l.plan.Load().limit), o)
}

// shared returns the share of a limit. The zero Limit means another one, whose share is taken.
func shared(share func(ratelimit.Limit) ratelimit.Limit, limit ratelimit.Limit) ratelimit.Limit {
	switch limit.Algorithm {
	case 0, ratelimit.AlgorithmUnlimited, ratelimit.AlgorithmBlocked:
		return limit
	}
	local := share(limit)
	if local.Name == "" {
		local.Name = limit.Name
	}
	return local
}

// Local returns a stack in memory of the same layers, for package failover. The share function returns the part of a limit that
// this process enforces alone, such as failover.Share; Unlimited and Blocked stay. A later SetLimit does not change the stack.
// Each limiter tracks at most maxKeys keys; 0 means the default of [ratelimit.Options]. The error names the layer that is wrong.
func (l *Layered[R]) Local(share func(ratelimit.Limit) ratelimit.Limit, maxKeys int) (*ratelimit.Layered[R], error) {
	if l == nil || len(l.layers) == 0 {
		return nil, errors.New("redislimit: Local of a Layered that neither All nor AllOf has made")
	}
	if share == nil {
		return nil, errors.New("redislimit: Local was given no share function")
	}
	limiters := make(map[*Limiter]*ratelimit.Keyed[string])
	layers := make([]ratelimit.Layer[R], len(l.layers))
	for i, y := range l.layers {
		local := limiters[y.l]
		if local == nil {
			var err error
			if local, err = y.l.local(share, maxKeys); err != nil {
				return nil, fmt.Errorf("redislimit: layer %d: %w", i, err)
			}
			limiters[y.l] = local
		}
		layers[i] = y.local(local, share)
	}
	if l.pick != nil {
		return ratelimit.AllOf(l.pick, layers...)
	}
	return ratelimit.All(layers...)
}

// local returns the layer over a limiter in memory.
func (y *layer[R]) local(l *ratelimit.Keyed[string], share func(ratelimit.Limit) ratelimit.Limit) ratelimit.Layer[R] {
	local := ratelimit.By(l, y.key)
	local.Cost, local.Shadow, local.Observe = y.cost, y.shadow, y.watch
	if limitOf := y.limit; limitOf != nil {
		local.Limit = func(r R) ratelimit.Limit { return shared(share, limitOf(r)) }
	}
	return local
}
