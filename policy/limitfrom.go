package policy

import (
	"errors"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-go/ratelimit"
)

// maxGiven bounds the limits of one rule that attributes have brought, and are kept.
const maxGiven = 10_000

// limitCache keeps the limits for the texts of an attribute, so that most decisions parse nothing. It is safe for concurrent use.
type limitCache struct {
	mu     sync.RWMutex
	byText map[string]*ratelimit.Limit // nil for a text that is no limit
}

func newLimitCache() *limitCache { return &limitCache{byText: map[string]*ratelimit.Limit{}} }

// get returns the limit of a text, nil if it is none.
func (c *limitCache) get(text string, parse func(string) (ratelimit.Limit, error)) *ratelimit.Limit {
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

// givenLimit reads the value of the attribute of LimitFrom: a limit, or a number of units, to which the whole limit of the rule scales.
func (c *rule) givenLimit(text string) (l ratelimit.Limit, err error) {
	if units, failed := strconv.Atoi(text); failed == nil {
		l, err = c.scaled(units, text)
	} else {
		l, err = ratelimit.ParseLimit(text)
	}
	if err != nil {
		return l, err
	}
	l = l.Named(c.Name)
	if err = l.Validate(); err == nil {
		err = c.countable(c.enforced(l))
	}
	if err == nil && c.part != nil {
		l = c.part(l)
	}
	return c.enforced(l), err
}

// scaled returns the rule's limit with that many units, and the burst in proportion, rounded down to 1 at least. No units are blocked.
func (c *rule) scaled(units int, text string) (ratelimit.Limit, error) {
	l := c.whole
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
