package main

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// While servers are down, jobs wait for pages, and tenants get pages by their weights.
func TestTableShowsSharesAndPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds = 8
		var out strings.Builder
		require.NoError(t, tenants(&out, seconds, 1))
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, lines, 1+3*seconds)
		var sum [4]int // the pages and jobs served after the limit has adapted to the missing servers
		for _, line := range lines[1+seconds+2 : 1+2*seconds] {
			var x [10]int
			_, err := fmt.Sscan(line, &x[0], &x[1], &x[2], &x[3], &x[4], &x[5], &x[6], &x[7], &x[8], &x[9])
			require.NoError(t, err)
			for i := range sum {
				sum[i] += x[6+i]
			}
		}
		// Slots are shared 3 to 1. Beta waits longer, so more of its slots come too late for a page.
		assert.Greater(t, sum[0], 2*sum[1], "acme's pages, and beta's")
		assert.Greater(t, sum[1], 10*(seconds-2), "beta's pages")
		assert.Zero(t, sum[2]+sum[3], "no job goes before a page")
	})
}
