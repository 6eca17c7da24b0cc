package promlimit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/policy"
)

// figures is a collector of counters and gauges that are read when they are asked for.
type figures struct {
	descs   []*prometheus.Desc
	collect func(add func(i int, value float64))
	kinds   []prometheus.ValueType
}

func (f *figures) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range f.descs {
		ch <- d
	}
}

func (f *figures) Collect(ch chan<- prometheus.Metric) {
	f.collect(func(i int, value float64) {
		ch <- prometheus.MustNewConstMetric(f.descs[i], f.kinds[i], value)
	})
}

// figure describes one of them.
type figure struct {
	name, help string
	kind       prometheus.ValueType
	labels     prometheus.Labels
}

// register registers figures that belong together, so that they are read together.
func (m *Metrics) register(limiter string, list []figure, collect func(add func(i int, value float64))) error {
	f := &figures{collect: collect}
	for _, fig := range list {
		labels := prometheus.Labels{}
		if limiter != "" {
			labels["limiter"] = limiter
		}
		for k, v := range fig.labels {
			labels[k] = v
		}
		f.descs = append(f.descs, prometheus.NewDesc("ratelimit_"+fig.name, fig.help, nil, labels))
		f.kinds = append(f.kinds, fig.kind)
	}
	return m.reg.Register(f)
}

const (
	count = prometheus.CounterValue
	gauge = prometheus.GaugeValue
)

// Table registers how a limiter's table of keys stands. stats is its method Stats. The error
// is the registerer's.
func (m *Metrics) Table(limiter string, stats func() ratelimit.Stats) error {
	return m.register(limiter, []figure{
		{"keys", "Keys that are tracked.", gauge, nil},
		{"keys_expired_total", "Keys dropped as fresh: nothing was forgotten.", count, nil},
		{"keys_evicted_total", "Keys dropped to make room, with what they had spent.", count, nil},
		{"keys_evicted_throttled_total", "Keys dropped to make room while they were throttled.", count, nil},
		{"keys_refused_total", "New keys refused because the table was full.", count, nil},
	}, func(add func(int, float64)) {
		s := stats()
		add(0, float64(s.Keys))
		add(1, float64(s.Expired))
		add(2, float64(s.Evicted))
		add(3, float64(s.EvictedThrottled))
		add(4, float64(s.Refused))
	})
}

// Breaker is what a *[failover.Limiter] is, whatever its keys.
type Breaker interface {
	State() failover.State
	Stats() failover.Stats
}

// Failover registers how a failover limiter stands: its breaker's state (0 closed, 1 half
// open, 2 open), who decided, and why the primary did not. The error is the registerer's.
func (m *Metrics) Failover(limiter string, b Breaker) error {
	label := func(name, value string) prometheus.Labels { return prometheus.Labels{name: value} }
	const by, byHelp = "failover_decisions_total", "Decisions, by who took them."
	const why, whyHelp = "failover_failures_total", "Calls of the primary that failed, by kind."
	return m.register(limiter, []figure{
		{"breaker_state", "The breaker's state: 0 closed, 1 half open, 2 open.", gauge, nil},
		{"breaker_opened_total", "How often the breaker has opened.", count, nil},
		{by, byHelp, count, label("by", "primary")},
		{by, byHelp, count, label("by", "instead")},
		{why, whyHelp, count, label("kind", "unavailable")},
		{why, whyHelp, count, label("kind", "timeout")},
		{why, whyHelp, count, label("kind", "panic")},
	}, func(add func(int, float64)) {
		s := b.Stats()
		add(0, stateValue(b.State()))
		add(1, float64(s.Opened))
		add(2, float64(s.Primary))
		add(3, float64(s.Instead))
		add(4, float64(s.Unavailable))
		add(5, float64(s.Timeouts))
		add(6, float64(s.Panics))
	})
}

func stateValue(s failover.State) float64 {
	switch s {
	case failover.StateClosed:
		return 0
	case failover.StateOpen:
		return 2
	}
	return 1
}

// Lease registers how leases stand. stats is the lease limiter's method Stats. The error is the
// registerer's.
func (m *Metrics) Lease(limiter string, stats func() lease.Stats) error {
	const by, byHelp = "lease_decisions_total", "Decisions, by whether the remote limiter was asked."
	return m.register(limiter, []figure{
		{by, byHelp, count, prometheus.Labels{"by": "local"}},
		{by, byHelp, count, prometheus.Labels{"by": "remote"}},
		{"lease_round_trips_total", "Calls of the remote limiter.", count, nil},
		{"lease_given_back_units_total", "Units of batches that were given back.", count, nil},
		{"lease_lost_units_total", "Units that were charged, and neither used nor given back.", count, nil},
		{"lease_held_units", "Units that are held.", gauge, nil},
	}, func(add func(int, float64)) {
		s := stats()
		add(0, float64(s.Local))
		add(1, float64(max(s.Decisions, s.Local)-s.Local))
		add(2, float64(s.RoundTrips))
		add(3, float64(s.UnitsGivenBack))
		add(4, float64(s.UnitsLost))
		add(5, float64(s.Held))
	})
}

// Policies registers how policies stand. The error is the registerer's.
func (m *Metrics) Policies(p *policy.Policies) error {
	return m.register("", []figure{
		{"policy_generation", "How many sets of rules were put in force.", gauge, nil},
		{"policy_loaded_timestamp_seconds", "When the set in force was put in force, in Unix time.", gauge, nil},
		{"policy_rules", "Rules of the set in force.", gauge, nil},
		{"policy_kill_switch", "1 while the kill switch is on.", gauge, nil},
		{"policy_fault", "1 while the newest set could not be put in force.", gauge, nil},
	}, func(add func(int, float64)) {
		s := p.Stats()
		add(0, float64(s.Generation))
		add(1, float64(s.LoadedAt.UnixMilli())/1000)
		add(2, float64(s.Rules))
		add(3, oneIf(s.KillSwitch))
		add(4, oneIf(s.LastError != nil))
	})
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
