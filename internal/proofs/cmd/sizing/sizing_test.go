package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/redistest"
)

// TestAllTablesArePrinted runs the command with small settings.
func TestAllTablesArePrinted(t *testing.T) {
	redistest.Program(t)
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, "", settings{keys: 2000, rounds: 1, per: 10 * time.Millisecond}))
	for _, row := range []string{"| sliding-log, 100 spendings |", "| GOMAXPROCS |", "| sliding-counter | 1000 |", "| Take on Redis", "| Take of a lease", " cores, "} {
		assert.Contains(t, out.String(), row)
	}
	require.ErrorContains(t, run(t.Context(), &out, "nothing", settings{1, 1, 1}), "nothing")
	require.Error(t, run(t.Context(), &out, "", settings{}))
}

// TestQuantiles compares with exact quantiles. A step is at most a sixteenth wide.
func TestQuantiles(t *testing.T) {
	var h histogram
	const n = 100_000
	for i := range n {
		h.add(time.Duration(i) * 17 * time.Nanosecond)
	}
	for _, q := range []float64{0.001, 0.5, 0.99, 0.999} {
		exact := time.Duration(q*n) * 17
		assert.GreaterOrEqual(t, h.quantile(q), exact)
		assert.LessOrEqual(t, h.quantile(q), exact+exact/16+1)
	}
	for d := time.Duration(1); d > 0 && d < time.Hour; d += d/7 + 1 {
		assert.GreaterOrEqual(t, upper(step(d)), d)
		assert.Less(t, upper(step(d)-1), d)
	}
}
