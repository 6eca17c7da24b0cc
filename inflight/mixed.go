package inflight

import "time"

// mixed finds the queue of a backend with cheap and expensive work. Where times vary a lot, their mean says little: it follows the mix. A queue
// delays all work alike, in a backend that serves first come, first served. So the median grows by the wait, and the queue is throughput × wait.
// Times vary that much if their variation is large, or if priorities differ in the length of their work.
type mixed struct {
	typical float64 // median of single requests' times without a queue, in nanoseconds; 0 if it is not known
	recent  float64 // the same, smoothed, for its fall
	varies  float64 // square of the coefficient of variation of single requests' times, smoothed
}

const (
	mixture   = 4    // square of the coefficient of variation from which on the median is used
	mixMemory = 0.05 // the weight of a window in the smoothed variation
	mixFall   = 0.2  // the weight of a window in the smoothed median
)

// observe takes in a window outside probes.
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

// measured takes in the median that a probe has found; 0 if it is not known.
func (m *mixed) measured(median float64) {
	if median > 0 {
		m.typical, m.recent = median, median
	}
}

// latency returns the latency that the queue of a window explains, at most the measured one.
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
