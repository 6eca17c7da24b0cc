package stats

import "strconv"

// WaitBuckets are the upper bounds, in seconds, of the buckets of [Inflight].Waits.
var WaitBuckets = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}

// Inflight tells how a limiter of package inflight stands, over all keys.
type Inflight struct {
	// InFlight is how many units are in flight now.
	InFlight int
	// Limit is how many may be in flight now over all keys: Options.Total, or what Options.Shared has learnt.
	// 0 if there is no such limit.
	Limit int
	// Queued is how many calls of Acquire wait now.
	Queued int
	// Keys is how many keys are tracked.
	Keys int
	// Shed counts the calls that were refused for lack of room, and those thrown out of a queue. In a dry run,
	// those that would have been.
	Shed uint64
	// Waits counts those who were served from a queue by how long they had waited: in each element those that
	// waited no longer than the bound of [WaitBuckets], and longer than the bound before; in the last one all others.
	Waits [len(WaitBuckets) + 1]uint64
}

// OfInflight returns the figures of a limiter of package inflight. read is its method Totals.
func OfInflight(read func() Inflight) Group {
	return Group{
		Figures: []Figure{
			{Name: "inflight", Unit: "{unit}", Gauge: true, Help: "Units in flight."},
			{Name: "inflight.limit", Unit: "{unit}", Gauge: true, Help: "Units that may be in flight over all keys: Total, or what Shared has learnt."},
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
			waits := uint64(0)
			for i, n := range s.Waits {
				waits += n
				within := "+Inf"
				if i < len(WaitBuckets) {
					within = strconv.FormatFloat(WaitBuckets[i], 'g', -1, 64)
				}
				add(5, float64(waits), within)
			}
		},
	}
}
