package redislimit

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// TestEveryAlgorithmIsCounted checks all algorithms of the root package.
// An algorithm missing here would count nothing and allow everything.
func TestEveryAlgorithmIsCounted(t *testing.T) {
	counted := 0
	for a := range ratelimit.Algorithm(64) {
		l := ratelimit.Limit{Algorithm: a, Rate: ratelimit.PerSecond(10)}
		if l.Validate() != nil {
			l.Burst = 10
		}
		if a == ratelimit.AlgorithmUnlimited || a == ratelimit.AlgorithmBlocked {
			l = ratelimit.Limit{Algorithm: a}
		}
		if l.Validate() != nil {
			continue
		}
		p, err := newPlan(l, defaultMaxLog)
		require.NoError(t, err, "%v", l)
		if l.Rate.Units > 0 {
			assert.NotZero(t, p.kind, "%v", l)
			counted++
		}
	}
	assert.GreaterOrEqual(t, counted, 5)
}
