package figures

import "github.com/weir-go/ratelimit/failover"

// ofFailover returns a failover limiter's figures. read is its method Stats.
func ofFailover(read func() failover.Stats) Group {
	return Group{
		Figures: []Figure{
			{Name: "breaker.state", Unit: "1", Gauge: true, Help: "The breaker's state: 0 closed, 1 half open, 2 open."},
			{Name: "breaker.opened", Unit: "{time}", Help: "How often the breaker has opened."},
			{Name: "failover.decisions", Unit: "{decision}", By: []string{"by"}, Help: "Decisions, by the limiter that took them."},
			{Name: "failover.failures", Unit: "{failure}", By: []string{"kind"}, Help: "Calls of the primary that failed, by kind."},
			{Name: "breaker.forced", Unit: "1", Gauge: true, Help: "Whether an operator has forced the breaker's state: 1 if so."},
			{Name: "failover.degraded_since", Unit: "s", Gauge: true, Help: "When the breaker opened, in seconds since 1970; 0 while it is closed."},
			{Name: "failover.unsettled", Unit: "{settlement}", Help: "Settlements of the primary's reservations that failed."},
		},
		Read: func(add func(int, float64, ...string)) {
			s := read()
			add(0, float64(s.State))
			add(1, float64(s.Opened))
			add(2, float64(s.Primary), "primary")
			add(2, float64(s.Instead), "instead")
			add(3, float64(s.Unavailable), "unavailable")
			add(3, float64(s.Timeouts), "timeout")
			add(3, float64(s.Panics), "panic")
			forced, since := 0.0, 0.0
			if s.Forced {
				forced = 1
			}
			if !s.DegradedSince.IsZero() {
				since = float64(s.DegradedSince.UnixMilli()) / 1000
			}
			add(4, forced)
			add(5, since)
			add(6, float64(s.Unsettled))
		},
	}
}
