package figures

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/stats"
)

// RuleCounts counts rules' decisions. The zero value is ready to use. It is safe for concurrent use.
type RuleCounts struct {
	requests [outcome.Count]atomic.Uint64
	killed   atomic.Uint64

	mu      sync.RWMutex // guards the fields below
	series  map[ruleSeries]*atomic.Uint64
	inForce func() []string // returns the rules' names in force; nil if not known
}

// ruleSeries are the labels of [RuleDecisions].
type ruleSeries struct {
	rule, plan string
	shadow     bool
	outcome    outcome.Outcome
}

// Count counts a decision. Pass it as Options.OnDecision of package policy.
func (c *RuleCounts) Count(d stats.PolicyDecision) {
	if d.KillSwitch {
		c.killed.Add(1)
		return
	}
	c.requests[outcome.Of(d.Decision, d.Err)].Add(1)
	for i := range d.Rules {
		if o, ok := outcomeOf(&d, i); ok {
			r := &d.Rules[i]
			c.count(ruleSeries{r.Rule, r.Plan, r.Shadow, o})
		}
	}
}

func (c *RuleCounts) count(s ruleSeries) {
	c.mu.RLock()
	n := c.series[s]
	c.mu.RUnlock()
	if n == nil {
		c.mu.Lock()
		if n = c.series[s]; n == nil {
			if c.series == nil {
				c.series = map[ruleSeries]*atomic.Uint64{}
			}
			n = new(atomic.Uint64)
			c.series[s] = n
		}
		c.mu.Unlock()
	}
	n.Add(1)
}

// keep sets the function for the names of the rules in force. All other rules' counts are discarded.
func (c *RuleCounts) keep(inForce func() []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inForce = inForce
}

// Group returns the figures.
func (c *RuleCounts) Group() Group {
	return Group{
		Figures: []Figure{RuleDecisions, PolicyRequests},
		Read: func(add func(int, float64, ...string)) {
			for s, n := range c.forget() {
				add(0, float64(n), s.rule, s.plan, strconv.FormatBool(s.shadow), s.outcome.String())
			}
			for o := range c.requests {
				if n := c.requests[o].Load(); n > 0 {
					add(1, float64(n), outcome.Outcome(o).String())
				}
			}
			if n := c.killed.Load(); n > 0 {
				add(1, float64(n), "killed")
			}
		},
	}
}

// forget discards the counts of rules not in force, and returns the other counts.
func (c *RuleCounts) forget() map[ruleSeries]uint64 {
	c.mu.RLock()
	inForce := c.inForce
	c.mu.RUnlock()
	var names []string
	if inForce != nil {
		names = slices.Clone(inForce()) // without a lock, because the function is the program's
		slices.Sort(names)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	left := make(map[ruleSeries]uint64, len(c.series))
	for s, n := range c.series {
		if _, ok := slices.BinarySearch(names, s.rule); inForce != nil && !ok {
			delete(c.series, s)
			continue
		}
		left[s] = n.Load()
	}
	return left
}

// outcomeOf returns the decision's outcome under its i-th rule. If the engine did not report it,
// and this rule caused the decision, the outcome is the whole decision's. Otherwise ok is false.
func outcomeOf(d *stats.PolicyDecision, i int) (o outcome.Outcome, ok bool) {
	r := &d.Rules[i]
	switch {
	case !r.Answered:
		return outcome.Of(d.Decision, d.Err), d.Decision.Limit.Name == r.Rule
	case !r.Decision.Allowed && r.Cost > r.Decision.Limit.Capacity():
		return outcome.Exceeds, true
	}
	return outcome.Of(r.Decision, nil), true
}
