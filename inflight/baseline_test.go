package inflight

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The variation of times is the mean of (deviation / mean)². It is 1 if times are exponential, and 0 if all are equal.
func TestHowMuchTimesVaryIsLearntFromWindows(t *testing.T) {
	for deviation, want := range map[time.Duration]float64{0: 0, 5 * time.Millisecond: 0.25, 10 * time.Millisecond: 1, 30 * time.Millisecond: 9} {
		b := baseline{}
		for range 20 { // a few windows with other times come first
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

// If the latency of 100 came from a queue alone, half the limit would halve it. It falls to 71, perhaps
// by noise. So the probe's step lasts for three windows, and then the probe has found the baseline.
func TestANoisyProbeLooksAtThreeWindows(t *testing.T) {
	b := baseline{probe: probe{running: true, before: measure{limit: 8, rtt: 100}, cut: 4}, noise: 0.1}
	for n := 1; n < most; n++ {
		assert.EqualValues(t, 4, b.next(71, 100, false, Sample{}, nil))
		assert.Equal(t, n, b.probe.n)
	}
	b.next(71, 100, false, Sample{}, func(load) float64 { return 4 })
	assert.False(t, b.probe.running)
	assert.InDelta(t, 71, b.rtt, 1e-9)
}

// In Kaplan and Meier's estimate, work lasting exactly as long as other work is still
// at risk when the other work ends. So a third of three has ended, not half of two.
func TestWorkThatLastsAsLongAsOtherWorkCountsBesideIt(t *testing.T) {
	const d = 1024 * time.Millisecond
	var x times
	x.reset(d)
	for range 3 {
		x.entered(0)
	}
	x.ended(d)
	x.lasts(d)
	x.ended(2 * d)
	mean, _, _, ended := x.moments()
	assert.InDelta(t, (d/3 + 2*d*2/3).Seconds(), mean.Seconds(), 1e-6)
	assert.Equal(t, 2, ended)
}
