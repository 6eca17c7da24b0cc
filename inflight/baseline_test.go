package inflight

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// How much times vary is the mean of the square of deviation over mean: 1 if times are exponential, and 0 if all are the same.
func TestHowMuchTimesVaryIsLearntFromWindows(t *testing.T) {
	for deviation, want := range map[time.Duration]float64{0: 0, 5 * time.Millisecond: 0.25, 10 * time.Millisecond: 1, 30 * time.Millisecond: 9} {
		b := baseline{}
		for range 20 { // a few windows of something else come first
			b.vary(Sample{Ended: 7, RTT: time.Millisecond, Deviation: 2 * time.Millisecond})
		}
		for range 100 {
			b.vary(Sample{Ended: 50, RTT: 10 * time.Millisecond, Deviation: deviation})
		}
		assert.InDelta(t, want, b.varies, 1e-6, "a deviation of %v", deviation)
		b.vary(Sample{Ended: 0, RTT: time.Hour, Deviation: time.Hour})
		b.vary(Sample{Ended: 9, RTT: 0, Deviation: time.Hour})
		assert.InDelta(t, want, b.varies, 1e-6, "windows without an answer say nothing")
	}
}
