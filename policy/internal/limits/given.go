package limits

import (
	"errors"
	"math"
	"math/bits"
	"strings"
	"sync"

	"github.com/weir-go/ratelimit"
)

// A cache's bounds.
const (
	maxGiven = 10_000 // the maximum number of limits kept
	maxText  = 1024   // a text's maximum length in bytes
)

// Cache keeps the limits parsed from an attribute's values, so that
// most decisions need not parse a text. It is safe for concurrent use.
type Cache struct {
	mu     sync.RWMutex
	byText map[string]*ratelimit.Limit // nil if the text is not a limit
}

// NewCache returns an empty cache.
func NewCache() *Cache { return &Cache{byText: map[string]*ratelimit.Limit{}} }

// Get returns a text's limit, or nil if the text is not a limit. It calls parse only for a text not in the cache.
func (c *Cache) Get(text string, parse func(string) (ratelimit.Limit, error)) *ratelimit.Limit {
	if len(text) > maxText {
		return nil
	}
	c.mu.RLock()
	l, ok := c.byText[text]
	c.mu.RUnlock()
	if ok {
		return l
	}
	if parsed, err := parse(text); err == nil {
		l = &parsed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.byText[text]; ok {
		return known
	}
	if len(c.byText) >= maxGiven {
		clear(c.byText)
	}
	c.byText[strings.Clone(text)] = l
	return l
}

// Scaled returns a limit with the given number of units. text is the number's text. The burst is
// scaled in proportion and rounded down, but not below 1. For 0 units Scaled returns Blocked.
func Scaled(l ratelimit.Limit, units int, text string) (ratelimit.Limit, error) {
	switch {
	case units < 0 || text[0] == '-':
		return l, errors.New("a number of units below 0")
	case units == 0:
		return ratelimit.Blocked(), nil
	case l.Algorithm == ratelimit.AlgorithmUnlimited || l.Algorithm == ratelimit.AlgorithmBlocked:
		return l, errors.New("the rule's limit has no units")
	}
	if l.Burst > 0 {
		high, low := bits.Mul64(uint64(l.Burst), uint64(units))
		if high >= uint64(l.Rate.Units) {
			return l, errors.New("the burst in proportion is too large")
		}
		burst, _ := bits.Div64(high, low, uint64(l.Rate.Units))
		if burst > math.MaxInt {
			return l, errors.New("the burst in proportion is too large")
		}
		l.Burst = max(1, int(burst))
	}
	l.Rate.Units = units
	return l, nil
}
