package otellimit_test

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/otellimit"
)

func ExampleOnDecision() {
	reader := metric.NewManualReader() // a service uses a reader with an exporter
	metrics, err := otellimit.New(metric.NewMeterProvider(metric.WithReader(reader)).Meter("myapp"))
	if err != nil {
		panic(err)
	}
	limiter, err := ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("hourly"),
		&ratelimit.Options[string]{OnDecision: otellimit.OnDecision[string](metrics, "api")})
	if err != nil {
		panic(err)
	}
	if err := metrics.Register("api", limiter); err != nil {
		panic(err)
	}
	for range 3 {
		limiter.Allow("user:42", 1)
	}
	show(reader, "ratelimit.decisions")
	show(reader, "ratelimit.keys")
	// Output:
	// ratelimit.decisions allowed 2
	// ratelimit.decisions denied 1
	// ratelimit.keys 1
}

// Timed measures a limiter whose budgets are on a server. Register exports a lease's calls of its remote limiter.
func ExampleTimed() {
	reader := metric.NewManualReader()
	metrics, err := otellimit.New(metric.NewMeterProvider(metric.WithReader(reader)).Meter("myapp"))
	if err != nil {
		panic(err)
	}
	remote, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), nil) // a service uses redislimit.New
	if err != nil {
		panic(err)
	}
	leases, err := lease.New(otellimit.Timed(metrics, "redis", ratelimit.Reserver[string](remote)), &lease.Options[string]{MaxBatch: 100, HoldFor: time.Second})
	if err != nil {
		panic(err)
	}
	if err := metrics.Register("api", leases); err != nil {
		panic(err)
	}
	fmt.Println(leases.Allow("user:42", 1))
	show(reader, "ratelimit.lease.round_trips")
	// Output:
	// true
	// ratelimit.lease.round_trips 1
}

// show prints a metric's figures.
func show(reader metric.Reader, name string) {
	var out metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &out); err != nil {
		panic(err)
	}
	for _, scope := range out.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				byOutcome := map[string]int64{}
				for _, p := range data.DataPoints {
					outcome, _ := p.Attributes.Value("outcome")
					byOutcome[outcome.AsString()] = p.Value
				}
				for _, outcome := range []string{"", "allowed", "denied"} {
					if n := byOutcome[outcome]; n > 0 && outcome != "" {
						fmt.Println(name, outcome, n)
					} else if n > 0 {
						fmt.Println(name, n)
					}
				}
			case metricdata.Gauge[int64]:
				fmt.Println(name, data.DataPoints[0].Value)
			}
		}
	}
}
