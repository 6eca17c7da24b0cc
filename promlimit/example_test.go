package promlimit_test

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/promlimit"
)

func Example() {
	reg := prometheus.NewRegistry() // a program may use prometheus.DefaultRegisterer
	metrics, err := promlimit.New(reg)
	if err != nil {
		panic(err)
	}
	limiter, err := ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("hourly"),
		&ratelimit.Options[string]{OnDecision: promlimit.OnDecision[string](metrics, "api")})
	if err != nil {
		panic(err)
	}
	if err := metrics.Register("api", limiter); err != nil {
		panic(err)
	}
	for range 3 {
		limiter.Allow("user:42", 1)
	}
	families, _ := reg.Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if c := m.GetCounter(); c != nil && c.GetValue() > 0 && f.GetName() == "ratelimit_decisions_total" {
				fmt.Println(m.GetLabel()[2].GetValue(), c.GetValue())
			}
		}
	}
	// Output:
	// allowed 2
	// denied 1
}
