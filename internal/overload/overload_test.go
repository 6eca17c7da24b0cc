package overload

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/inflight"
)

// The promises that the documentation makes of the adaptive limits.
func TestAdaptiveLimitsDoNearlyAsWellAsTheBestFixedOne(t *testing.T) {
	for i, sc := range Scenarios() {
		if testing.Short() && i > 0 {
			continue
		}
		t.Run(sc.Name, func(t *testing.T) {
			t.Parallel()
			for _, row := range Compare(sc, 1) {
				switch row.Limit {
				case "none":
					assert.Less(t, row.Share, 0.3, "without a limit it collapses: else the scenario shows nothing")
				case "best fixed":
					assert.Equal(t, 1.0, row.Share)
				default:
					assert.GreaterOrEqual(t, row.Share, 0.9, "%s: goodput", row.Limit)
					assert.LessOrEqual(t, row.Ratio, 2.0, "%s: p99", row.Limit)
					assert.True(t, 0 <= row.Recovery && row.Recovery <= 30, "%s: %d windows to recover", row.Limit, row.Recovery)
				}
			}
		})
	}
}

func TestRunsAreRepeatable(t *testing.T) {
	sc := Scenarios()[0]
	for _, limit := range Algorithms(sc) {
		assert.Equal(t, Simulate(sc, limit, 3), Simulate(sc, limit, 3), limit.Name)
	}
	assert.NotEqual(t, Simulate(sc, Limit{}, 3), Simulate(sc, Limit{}, 4))
}

// A simulation that is wrong proves nothing: what queueing theory says must come out.
func TestSimulationAgreesWithTheory(t *testing.T) {
	quiet := &Scenario{Phases: []Phase{{For: 500 * time.Second, Servers: 1, Service: 50 * time.Millisecond, PerSecond: 10}}, Deadline: time.Hour}
	r := Simulate(quiet, Limit{}, 1)
	sum := time.Duration(0)
	for _, a := range r.Answers {
		sum += a.Latency
	}
	mean := sum / time.Duration(len(r.Answers))
	assert.InDelta(t, 100*time.Millisecond, mean, float64(8*time.Millisecond), "M/M/1 at half load: twice the service time")
	assert.InDelta(t, 10, r.Goodput(0, quiet.Length()), 0.5)

	lossy := &Scenario{Phases: []Phase{{For: 500 * time.Second, Servers: 2, Service: 50 * time.Millisecond, PerSecond: 40}}, Deadline: time.Hour}
	r = Simulate(lossy, Limit{Most: 2}, 1)
	share := float64(r.Shed) / float64(r.Shed+len(r.Answers))
	assert.InDelta(t, 0.4, share, 0.02, "M/M/2/2 at a load of 2: Erlang's loss formula")
}

func TestRecoveryIsCountedInWindows(t *testing.T) {
	r := &Run{Deadline: time.Second}
	for at := 5 * time.Second; at < 20*time.Second; at += 100 * time.Millisecond {
		r.Answers = append(r.Answers, Answer{at, time.Millisecond})
	}
	for at := time.Duration(0); at < 20*time.Second; at += 500 * time.Millisecond {
		r.Updates = append(r.Updates, Update{at, 1})
	}
	assert.Equal(t, 8, recoveredIn(r, time.Second, 20*time.Second, 10), "goodput is there from 5 s on, 8 windows after 1 s")
	assert.Equal(t, 0, recoveredIn(r, 6*time.Second, 20*time.Second, 10))
	assert.Equal(t, -1, recoveredIn(r, time.Second, 20*time.Second, 11))
	assert.Equal(t, 5500*time.Millisecond, r.Window(4*time.Second, 3))
	assert.Equal(t, time.Millisecond, r.P99(0, time.Hour))
	assert.Zero(t, r.P99(0, time.Second))
}

func TestAlgorithmsKnowTheirBound(t *testing.T) {
	for _, sc := range Scenarios() {
		for _, limit := range Algorithms(sc) {
			_, err := inflight.New(limit.Most, &inflight.Options[int]{Adaptive: limit.Adaptive})
			require.NoError(t, err)
		}
	}
}
