package figures

import "time"

// semaphore has the fields of redislimit's SemaphoreStats, because that package imports this one.
type semaphore = struct {
	InFlight int
	Waiting  int
	Oldest   time.Duration
	Lost     uint64
}

// ofSemaphore returns this process's figures about a fleet's semaphore. read is the semaphore's method Stats.
func ofSemaphore(read func() semaphore) Group {
	return Group{
		Figures: []Figure{
			{Name: "semaphore", Unit: "{unit}", Gauge: true, Help: "Slots that this process uses."},
			{Name: "semaphore.waiting", Unit: "{call}", Gauge: true, Help: "Calls of this process in line."},
			{Name: "semaphore.oldest", Unit: "s", Gauge: true, Help: "The age of this process's oldest permit; 0 without one."},
			{Name: "semaphore.lost", Unit: "{permit}", Help: "Permits whose slots had ended before their release: other work may have run at the same time."},
		},
		Read: func(add func(int, float64, ...string)) {
			s := read()
			for i, v := range []float64{float64(s.InFlight), float64(s.Waiting), s.Oldest.Seconds(), float64(s.Lost)} {
				add(i, v)
			}
		},
	}
}
