package inflight

import "time"

// AIMD raises the limit step by step while all is well and lowers it by a tenth in each
// window that is [Dropped], as TCP does (V. Jacobson, "Congestion avoidance and control",
// SIGCOMM 1988; the factor is Netflix's, concurrency-limits 0.5.4). It needs no baseline,
// but somebody who says what is too slow: outcomes of Dropped, or a [Timeout].
//
// The step is 1, or a twentieth of the limit if that is more. Until the first Dropped window,
// and below half the limit at which the last fall began, it is a quarter: so the limit is
// found, and found again, within some 20 windows.
//
// It has the options [Min], [Max], [Start] and [Timeout].
func AIMD(opts ...Option) Adaptive {
	t := tune("AIMD", opts)
	return func() Algorithm { return &aimd{level: newLevel(t)} }
}

type aimd struct {
	level
	falling bool
	high    float64 // the limit at which the last fall began; 0 if there was none
}

const (
	backoff   = 0.9
	fastStep  = 0.25
	smallStep = 0.05
)

func (a *aimd) validate() error {
	if err := a.has(true, false); err != nil {
		return err
	}
	return checkTimeout(a.timeout)
}

// Update returns the limit after a window.
func (a *aimd) Update(s Sample) int {
	if s.Dropped || a.timeout != nil && s.RTT > *a.timeout {
		if !a.falling {
			a.falling, a.high = true, a.limit
		}
		return a.set(a.limit*backoff, s.Max)
	}
	a.falling = false
	if a.idle(s) {
		return a.set(a.limit, s.Max)
	}
	return a.set(a.limit+a.step(), s.Max)
}

// step is by how much the limit grows after a good window.
func (a *aimd) step() float64 {
	if a.high == 0 || a.limit < a.high/2 {
		return max(1, a.limit*fastStep)
	}
	return max(1, a.limit*smallStep)
}

func checkTimeout(d *time.Duration) error {
	if d != nil && *d <= 0 {
		return errTimeout(*d)
	}
	return nil
}
