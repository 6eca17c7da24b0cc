package otellimit

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/policy"
)

// figure is a counter or a gauge that is read when it is asked for.
type figure struct {
	name, unit, help string
	gauge            bool
	values           []value
}

// value is one series of a figure.
type value struct {
	label, of string // an attribute beside the limiter's, if not empty
	at        int    // its index in what read returns
}

// register makes figures that belong together, so that they are read together.
func (m *Metrics) register(limiter string, figures []figure, read func() []int64) error {
	var all []metric.Observable
	var observe []func(o metric.Observer, now []int64)
	for _, f := range figures {
		instrument, err := m.observable(f)
		if err != nil {
			return err
		}
		all = append(all, instrument)
		for _, v := range f.values {
			attributes := v.attributes(limiter)
			observe = append(observe, func(o metric.Observer, now []int64) { o.ObserveInt64(instrument, now[v.at], attributes) })
		}
	}
	_, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		now := read()
		for _, f := range observe {
			f(o, now)
		}
		return nil
	}, all...)
	return err
}

func (m *Metrics) observable(f figure) (metric.Int64Observable, error) {
	name := "ratelimit." + f.name
	if f.gauge {
		return m.meter.Int64ObservableGauge(name, metric.WithUnit(f.unit), metric.WithDescription(f.help))
	}
	return m.meter.Int64ObservableCounter(name, metric.WithUnit(f.unit), metric.WithDescription(f.help))
}

func (v value) attributes(limiter string) metric.MeasurementOption {
	var kv []attribute.KeyValue
	if limiter != "" {
		kv = append(kv, attribute.String("limiter", limiter))
	}
	if v.label != "" {
		kv = append(kv, attribute.String(v.label, v.of))
	}
	return set(kv...)
}

// only is the value of a figure that has one.
func only(at int) []value { return []value{{at: at}} }

// Table registers how a limiter's table of keys stands. stats is its method Stats. The error
// is the meter's.
func (m *Metrics) Table(limiter string, stats func() ratelimit.Stats) error {
	return m.register(limiter, []figure{
		{"keys", "{key}", "Keys that are tracked.", true, only(0)},
		{"keys.expired", "{key}", "Keys dropped as fresh: nothing was forgotten.", false, only(1)},
		{"keys.evicted", "{key}", "Keys dropped to make room, with what they had spent.", false, only(2)},
		{"keys.evicted_throttled", "{key}", "Keys dropped to make room while they were throttled.", false, only(3)},
		{"keys.refused", "{key}", "New keys refused because the table was full.", false, only(4)},
	}, func() []int64 {
		s := stats()
		return []int64{int64(s.Keys), int64(s.Expired), int64(s.Evicted), int64(s.EvictedThrottled), int64(s.Refused)}
	})
}

// Breaker is what a *[failover.Limiter] is, whatever its keys.
type Breaker interface {
	State() failover.State
	Stats() failover.Stats
}

// Failover registers how a failover limiter stands: its breaker's state (0 closed, 1 half
// open, 2 open), who decided, and why the primary did not. The error is the meter's.
func (m *Metrics) Failover(limiter string, b Breaker) error {
	return m.register(limiter, []figure{
		{"breaker.state", "1", "The breaker's state: 0 closed, 1 half open, 2 open.", true, only(0)},
		{"breaker.opened", "{time}", "How often the breaker has opened.", false, only(1)},
		{"failover.decisions", "{decision}", "Decisions, by who took them.", false, []value{{"by", "primary", 2}, {"by", "instead", 3}}},
		{"failover.failures", "{failure}", "Calls of the primary that failed, by kind.", false,
			[]value{{"kind", "unavailable", 4}, {"kind", "timeout", 5}, {"kind", "panic", 6}}},
	}, func() []int64 {
		s := b.Stats()
		return []int64{stateValue(b.State()), int64(s.Opened), int64(s.Primary), int64(s.Instead), int64(s.Unavailable), int64(s.Timeouts), int64(s.Panics)}
	})
}

func stateValue(s failover.State) int64 {
	switch s {
	case failover.StateClosed:
		return 0
	case failover.StateOpen:
		return 2
	}
	return 1
}

// Lease registers how leases stand. stats is the lease limiter's method Stats. The error is
// the meter's.
func (m *Metrics) Lease(limiter string, stats func() lease.Stats) error {
	return m.register(limiter, []figure{
		{"lease.decisions", "{decision}", "Decisions, by whether the remote limiter was asked.", false, []value{{"by", "local", 0}, {"by", "remote", 1}}},
		{"lease.round_trips", "{call}", "Calls of the remote limiter.", false, only(2)},
		{"lease.given_back", "{unit}", "Units of batches that were given back.", false, only(3)},
		{"lease.lost", "{unit}", "Units that were charged, and neither used nor given back.", false, only(4)},
		{"lease.held", "{unit}", "Units that are held.", true, only(5)},
	}, func() []int64 {
		s := stats()
		return []int64{
			int64(s.Local), int64(max(s.Decisions, s.Local) - s.Local), int64(s.RoundTrips),
			int64(s.UnitsGivenBack), int64(s.UnitsLost), int64(s.Held),
		}
	})
}

// Policies registers how policies stand. The error is the meter's.
func (m *Metrics) Policies(p *policy.Policies) error {
	if p == nil {
		return errors.New("otellimit: nil Policies")
	}
	return m.register("", []figure{
		{"policy.generation", "{set}", "How many sets of rules were put in force.", true, only(0)},
		{"policy.loaded_at", "s", "When the set in force was put in force, in Unix time.", true, only(1)},
		{"policy.rules", "{rule}", "Rules of the set in force.", true, only(2)},
		{"policy.kill_switch", "1", "1 while the kill switch is on.", true, only(3)},
		{"policy.fault", "1", "1 while the newest set could not be put in force.", true, only(4)},
	}, func() []int64 {
		s := p.Stats()
		return []int64{int64(s.Generation), s.LoadedAt.Unix(), int64(s.Rules), oneIf(s.KillSwitch), oneIf(s.LastError != nil)}
	})
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
