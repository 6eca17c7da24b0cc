package policy

import (
	"strings"
	"sync"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/lastlimit"
)

// lastLimits are the limits of the last decisions on keys, if they differ from their rules' limits.
// Stores do not keep these limits, while a table in memory does. It is safe for concurrent use.
type lastLimits struct {
	mu   sync.RWMutex
	keys map[ruleKey]*ratelimit.Limit
}

type ruleKey struct{ rule, key string }

// maxLastLimits is the maximum number of keys with a last limit.
const maxLastLimits = 1 << 16

// note records a decision's limits under a set's rules.
func (l *lastLimits) note(rules []*rule, c *charges) {
	for i := range c.List {
		ch := &c.List[i]
		r := rules[ch.Rule]
		if !r.varies {
			continue
		}
		own, k := ch.Limit == &r.limit, ruleKey{r.id, ch.Key}
		l.mu.RLock()
		known := l.keys[k]
		l.mu.RUnlock()
		switch {
		case own && known != nil:
			l.mu.Lock()
			delete(l.keys, k)
			l.mu.Unlock()
		case !own && known != ch.Limit:
			l.add(k, ch.Limit)
		}
	}
}

func (l *lastLimits) add(k ruleKey, limit *ratelimit.Limit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = map[ruleKey]*ratelimit.Limit{}
	}
	for other := range l.keys {
		if len(l.keys) < maxLastLimits {
			break
		}
		delete(l.keys, other)
	}
	k.key = strings.Clone(k.key) // the key may share memory with a request
	l.keys[k] = limit
}

// of returns the limit of the last decision on a rule's key. With a store, it is this process's last decision.
func (l *lastLimits) of(g *generation, rule int, key string) (limit ratelimit.Limit, ok bool) {
	if t, inMemory := g.decider.limiters[rule].(*table); inMemory {
		limit, ok = lastlimit.Of(t.Keyed, key).(ratelimit.Limit)
		return limit, ok
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if known := l.keys[ruleKey{g.rules[rule].id, key}]; known != nil {
		return *known, true
	}
	return limit, false
}
