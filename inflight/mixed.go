package inflight

import "time"

// mixed finds the queue of a backend with cheap and expensive work. If times vary a lot, their mean
// depends on the mix and does not reveal a queue. But if a backend serves first come, first served, it
// delays all work alike. So the median grows by the wait, and the queue is throughput × wait. Times
// vary enough for this if their variation is large, or if priorities have work of different length.
type mixed struct {
	typical float64 // median of single requests' times without a queue, in nanoseconds; 0 if unknown
	recent  float64 // median, smoothed; typical falls with it
	varies  float64 // single requests' variance in time, in squares of their mean, smoothed
}

const (
	mixture   = 4    // the median is used if varies is at least this
	mixMemory = 0.05 // a window's weight in the smoothed variation
	mixFall   = 0.2  // a window's weight in the smoothed median
)

// observe records a window outside probes.
func (m *mixed) observe(s Sample) {
	median := float64(s.Median)
	if median <= 0 {
		return
	}
	if m.typical == 0 {
		m.measured(median)
	}
	m.recent += mixFall * (median - m.recent)
	m.typical = min(m.typical, m.recent)
}

// measured records a probe's median, or 0 if it has found none.
func (m *mixed) measured(median float64) {
	if median > 0 {
		m.typical, m.recent = median, median
	}
}

// latency returns a window's latency as explained by its queue and the baseline.
func (m *mixed) latency(rtt, baseline, inFlight, varies float64, s Sample) float64 {
	m.varies += mixMemory * (varies - m.varies)
	if m.varies < mixture && !s.mixed || m.typical == 0 || s.Median <= 0 || rtt <= baseline {
		return rtt
	}
	queue := s.Goodput * max(0, float64(s.Median)-m.typical) / float64(time.Second)
	if queue >= inFlight {
		return rtt
	}
	return min(rtt, baseline*inFlight/(inFlight-queue))
}
