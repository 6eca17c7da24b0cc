package inflight_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
)

// part is a backend of so many servers in front of which a share of calls is dropped at once, whatever the limit.
func (l *loop) part(n int, share float64) {
	for range n {
		rtt := time.Duration(float64(l.service) * max(1, float64(l.limit)/float64(l.servers)))
		good := min(float64(l.limit), float64(l.servers)) / l.service.Seconds()
		l.limit = l.alg.Update(inflight.Sample{
			RTT: rtt, Ended: 50, InFlight: l.limit, Mean: float64(l.limit), Crowd: float64(l.limit), Max: 200,
			Drops: share, Dropped: share >= 0.25, Outcomes: 100, Goodput: good,
		})
	}
}

// A lower limit does not cure a replica that is dead: the limit goes back, and that share of drops counts as nothing, but a larger one does.
func TestDropsThatALowerLimitDoesNotCureDoNotLowerIt(t *testing.T) {
	for name, adaptive := range adaptives {
		for _, share := range []float64{0.25, 0.5, 0.9} {
			l := &loop{adaptive(), 20, 20, service}
			l.part(150, 0)
			before := l.limit
			l.part(20, share)
			assert.GreaterOrEqual(t, l.limit, 20, "%s, %v", name, share)
			l.part(200, share)
			assert.GreaterOrEqual(t, l.limit, 20, "%s, %v", name, share)
			assert.LessOrEqual(t, l.limit, 2*before, "%s, %v: latency counts", name, share)
			l.part(200, 0)
			assert.InDelta(t, before, l.limit, float64(before)/4, "%s, %v", name, share)
		}
	}
}

// A backend that refuses what is above its capacity: the limit keeps near it.
func TestDropsThatALowerLimitCuresLowerIt(t *testing.T) {
	for name, adaptive := range adaptives {
		l, sum := &loop{adaptive(), 20, 20, service}, 0
		for i := range 600 {
			share := max(0, 1-20/float64(l.limit))
			l.limit = l.alg.Update(inflight.Sample{
				RTT: service, Ended: 50, InFlight: l.limit, Mean: float64(l.limit), Crowd: float64(l.limit), Max: 1000,
				Drops: share, Dropped: share >= 0.25, Outcomes: 100, Goodput: min(20, float64(l.limit)) / service.Seconds(),
			})
			if i >= 100 {
				sum += l.limit
			}
		}
		assert.InDelta(t, 22, float64(sum)/500, 5, name)
	}
}

// An outage of all, and drops of unknown share, lower the limit to Min.
func TestAnOutageOfAllLowersTheLimit(t *testing.T) {
	for name, adaptive := range adaptives {
		l := &loop{adaptive(), 20, 20, service}
		l.part(100, 0)
		for range 100 {
			l.limit = l.alg.Update(inflight.Sample{InFlight: l.limit, Mean: 1, Drops: 1, Dropped: true, Outcomes: 20, Max: 200})
		}
		assert.Equal(t, 1, l.limit, name)
		l.part(60, 0)
		assert.GreaterOrEqual(t, l.limit, 18, name)
	}
}

// Latency above Timeout is never what is usual, however long it lasts.
func TestTimeoutIsNoBaseline(t *testing.T) {
	for name, adaptive := range map[string]inflight.Adaptive{
		"Vegas": inflight.Vegas(&inflight.VegasOptions{Timeout: 5 * service}), "Gradient": inflight.Gradient(&inflight.GradientOptions{Timeout: 5 * service}),
	} {
		l := &loop{adaptive(), 20, 20, service}
		l.windows(150, 200)
		before := l.limit
		l.service *= 100
		_, high := extremes(l.windows(1000, 200)[20:])
		assert.Equal(t, 1, high, name)
		l.service /= 100
		l.windows(30, 200)
		assert.GreaterOrEqual(t, l.limit, before*8/10, name)
	}
}
