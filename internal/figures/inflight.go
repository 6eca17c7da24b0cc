package figures

import (
	"strconv"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/wait"
)

// ofInflight returns an inflight limiter's figures. read is its method Totals.
func ofInflight(read func() inflight.Totals) Group {
	return Group{
		Figures: []Figure{
			{Name: "inflight", Unit: "{unit}", Gauge: true, Help: "Units in flight."},
			{Name: "inflight.limit", Unit: "{unit}", Gauge: true, Help: "Units that may be in flight over all keys: Total, or the limit that Shared has learnt."},
			{Name: "inflight.queued", Unit: "{call}", Gauge: true, Help: "Calls that wait for a permit."},
			{Name: "inflight.keys", Unit: "{key}", Gauge: true, Help: "Keys that are tracked."},
			{Name: "inflight.shed", Unit: "{call}", Help: "Calls that were refused for lack of room."},
			{Name: "inflight.waits", Unit: "{call}", By: []string{"within"}, Help: "Calls that were served from a queue, by the most seconds that they waited: a histogram."},
		},
		Read: func(add func(int, float64, ...string)) {
			s := read()
			for i, v := range []float64{float64(s.InFlight), float64(s.Limit), float64(s.Queued), float64(s.Keys), float64(s.Shed)} {
				if i != 1 || s.Limit > 0 {
					add(i, v)
				}
			}
			sum := uint64(0)
			for i, n := range s.Waits {
				sum += n
				within := "+Inf"
				if i < len(wait.Buckets) {
					within = strconv.FormatFloat(wait.Buckets[i], 'g', -1, 64)
				}
				add(5, float64(sum), within)
			}
		},
	}
}
