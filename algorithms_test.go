package ratelimit_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// The tables of bucket.go, leaky.go, window.go and slidinglog.go come true, row by row.
func TestTheWorkedExamplesOfTheAlgorithms(t *testing.T) {
	for _, example := range []struct {
		file, with string
		limit      ratelimit.Limit
	}{
		{"bucket.go", "TokenBucket(PerSecond(10), 20)", ratelimit.TokenBucket(ratelimit.PerSecond(10), 20)},
		{"leaky.go", "LeakyBucket(PerSecond(10), 3)", ratelimit.LeakyBucket(ratelimit.PerSecond(10), 3)},
		{"window.go", "FixedWindow(PerMinute(10))", ratelimit.FixedWindow(ratelimit.PerMinute(10))},
		{"window.go", "SlidingCounter(PerMinute(10))", ratelimit.SlidingCounter(ratelimit.PerMinute(10))},
		{"slidinglog.go", "SlidingLog(PerMinute(10))", ratelimit.SlidingLog(ratelimit.PerMinute(10))},
	} {
		t.Run(example.with, func(t *testing.T) {
			source, err := os.ReadFile(example.file)
			require.NoError(t, err)
			_, table, found := strings.Cut(string(source), "With "+example.with+", for one key:\n//\n")
			require.True(t, found, "%s has no such example", example.file)
			table, _, _ = strings.Cut(table, "\n//\n")
			rows := strings.Split(table, "\n")[1:]
			require.Greater(t, len(rows), 4)
			l, clock := newLimiter(t, example.limit)
			for _, row := range rows {
				cells := strings.Fields(strings.TrimPrefix(row, "//"))
				at, err := time.ParseDuration(cells[0])
				require.NoError(t, err, row)
				clock.set(at)
				var cost int
				_, err = fmt.Sscan(cells[1], &cost)
				require.NoError(t, err, row)
				d, err := l.Take(t.Context(), "k", cost)
				require.NoError(t, err, row)
				got := []string{fmt.Sprint(d.Allowed), fmt.Sprint(d.Remaining), d.RetryAfter.String(), d.ResetAfter.String(), d.Delay.String()}
				if len(cells) == 6 {
					assert.Equal(t, "0s", got[4], row)
					got = got[:4]
				}
				assert.Equal(t, got, cells[2:], row)
			}
		})
	}
}
