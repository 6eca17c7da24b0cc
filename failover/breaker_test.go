package failover_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

func TestAStoreThatFailsEverySecondCallOpensTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{})
		calls := 0
		s.fail(func(context.Context) error {
			if calls++; calls%2 == 0 {
				return errDown
			}
			return nil
		})
		for range 10 {
			require.Equal(t, failover.StateClosed, l.Stats().State)
			take(t, l, 1)
			time.Sleep(10 * time.Millisecond)
		}
		require.Equal(t, failover.StateOpen, l.Stats().State, "5 of 10")
	})
}

func TestAStoreThatFailsEveryThirdCallDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{})
		calls := 0
		s.fail(func(context.Context) error {
			if calls++; calls%3 == 0 {
				return errDown
			}
			return nil
		})
		for range 1000 {
			take(t, l, 1)
			time.Sleep(10 * time.Millisecond)
		}
		require.Zero(t, l.Stats().Opened)
		require.EqualValues(t, 333, l.Stats().Unavailable)
	})
}

func TestWithLittleTrafficFailuresInARowOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 3})
		s.fail(down)
		for range 2 {
			take(t, l, 1)
			time.Sleep(time.Minute)
		}
		require.Equal(t, failover.StateClosed, l.Stats().State)
		s.fail(nil)
		take(t, l, 1)
		s.fail(down)
		for range 2 {
			take(t, l, 1)
			time.Sleep(time.Minute)
		}
		require.Equal(t, failover.StateClosed, l.Stats().State, "a success was between them")
		take(t, l, 1)
		require.Equal(t, failover.StateOpen, l.Stats().State)
	})
}

// Failures at one instant prove less than failures over a span:
// many concurrent failures are few beside one second's successes.
func TestManyFailuresAtOneInstantAreWeighedAgainstTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{})
		for range 100 {
			take(t, l, 1)
			time.Sleep(5 * time.Millisecond)
		}
		s.fail(down)
		storm(99, func() { take(t, l, 1) })
		require.Equal(t, failover.StateClosed, l.Stats().State)
		take(t, l, 1)
		require.Equal(t, failover.StateOpen, l.Stats().State)
	})
}

// A call that began before the breaker opened proves nothing about the present.
func TestALateResultOfBeforeAnOutageCountsAsNothing(t *testing.T) {
	for name, late := range map[string]error{"success": nil, "failure": errDown} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, wide)
				l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1, Timeout: time.Minute})
				release := make(chan struct{})
				s.fail(func(context.Context) error { <-release; return late })
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() { take(t, l, 1) })
				}
				synctest.Wait()
				s.fail(down)
				take(t, l, 1)
				require.Equal(t, failover.StateOpen, l.Stats().State)
				if late != nil { // a probe has closed the breaker
					s.fail(nil)
					time.Sleep(1200*time.Millisecond + 1)
					take(t, l, 1)
				}
				want := l.Stats().State
				close(release)
				wg.Wait()
				require.Equal(t, want, l.Stats().State)
			})
		})
	}
}

func TestAForcedStateHoldsUntilItIsLifted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 2, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		require.Zero(t, l.Stats().DegradedSince)

		l.Force(failover.StateOpen)
		since := time.Now()
		for range 10 {
			require.True(t, take(t, l, 1).Degraded)
			time.Sleep(time.Minute)
			require.Equal(t, failover.StateOpen, l.Stats().State)
		}
		require.Zero(t, s.calls.Load())
		require.True(t, l.Stats().Forced)
		require.Equal(t, since, l.Stats().DegradedSince)
		require.Contains(t, out.String(), "the breaker is forced open")

		l.Force(failover.StateClosed)
		s.fail(down)
		for range 10 {
			require.True(t, take(t, l, 1).Degraded)
			require.Equal(t, failover.StateClosed, l.Stats().State)
		}
		require.EqualValues(t, 10, s.calls.Load())
		require.Zero(t, l.Stats().DegradedSince)

		l.Force(failover.StateHalfOpen)
		require.False(t, l.Stats().Forced)
		require.Equal(t, failover.StateClosed, l.Stats().State, "it was closed")
		take(t, l, 1)
		take(t, l, 1)
		require.Equal(t, failover.StateOpen, l.Stats().State, "the breaker decides again")

		l.Force(failover.StateOpen)
		s.fail(nil)
		l.Force(failover.StateHalfOpen)
		require.False(t, take(t, l, 1).Degraded, "a probe")
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.Contains(t, out.String(), "forced no more")
	})
}

func TestStatsContainTheTimeSinceWhichDecisionsAreDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{})
		s.fail(down)
		time.Sleep(time.Hour)
		since := time.Now()
		for range 100 {
			take(t, l, 1)
			time.Sleep(100 * time.Millisecond)
		}
		got := l.Stats().DegradedSince
		require.GreaterOrEqual(t, got.Sub(since), time.Duration(0))
		require.Less(t, got.Sub(since), time.Second, "also after probes that have failed")
		s.fail(nil)
		time.Sleep(2 * time.Second)
		take(t, l, 1)
		require.Zero(t, l.Stats().DegradedSince)
	})
}

// The breaker goes on working after a panic in the user's function.
func TestAPanicInAHookLeavesTheBreakerWorking(t *testing.T) {
	for name, o := range map[string]failover.Options{
		"OnStateChange": {OnStateChange: func(_, _ failover.State) { panic("bomb") }},
		"Logger":        {Logger: slog.New(bomb{slog.DiscardHandler})},
	} {
		for _, timeout := range []time.Duration{0, -1} {
			t.Run(fmt.Sprint(name, timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStore(t, wide)
					o := o
					o.Failures, o.Timeout = 2, timeout
					l := over(t, s, failover.AllowAll[string](), o)
					for range 3 {
						s.fail(down)
						storm(5, func() { require.True(t, take(t, l, 1).Degraded) })
						require.Equal(t, failover.StateOpen, l.Stats().State)
						time.Sleep(1200*time.Millisecond + 1)
						s.fail(nil)
						require.False(t, take(t, l, 1).Degraded)
						require.Equal(t, failover.StateClosed, l.Stats().State)
					}
				})
			})
		}
	}
}

// bomb is a log handler that panics.
type bomb struct{ slog.Handler }

func (bomb) Enabled(context.Context, slog.Level) bool { panic("bomb") }

func TestTheLogReportsAnOutageInAFewLinesEachWithTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newStore(t, shared)
		s.fail(down)
		l := over(t, s, newLocal(t, local), failover.Options{Failures: 3, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		lines := func(text string) int { return strings.Count(out.String(), text) }
		for range 10 * 60 * 5 { // ten minutes
			_, err := l.Take(context.Background(), "secret-key", 1)
			require.NoError(t, err)
			time.Sleep(200 * time.Millisecond)
		}
		s.fail(nil)
		time.Sleep(2 * time.Second)
		take(t, l, 1)
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.Equal(t, 1, lines("the breaker is open"))
		require.Equal(t, 1, lines("the breaker is closed"))
		require.LessOrEqual(t, lines("\n"), 2+10, out.String())
		require.GreaterOrEqual(t, lines("\n"), 10, out.String())
		require.Equal(t, lines("\n"), lines(`failure=unavailable error="dial: connection refused`), out.String())
		require.NotContains(t, out.String(), "secret-key")
	})
}

func TestTheLogOfAStoreThatComesAndGoesIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newStore(t, wide)
		l := over(t, s, newLocal(t, wide), failover.Options{Logger: slog.New(slog.NewTextHandler(&out, nil))})
		r := rand.New(rand.NewPCG(1, 23))
		s.fail(func(context.Context) error {
			if r.IntN(2) == 0 {
				return errDown
			}
			return nil
		})
		for range 10 * 60 * 50 { // ten minutes
			take(t, l, 1)
			time.Sleep(20 * time.Millisecond)
		}
		require.Greater(t, l.Stats().Opened, uint64(100))
		require.LessOrEqual(t, strings.Count(out.String(), "\n"), 2+10, out.String())
		require.Contains(t, out.String(), "opened=", "those that have no line are counted")
	})
}

var histories = flag.Int("histories", testsize.Of(20, 1000), "random histories of the breaker")

// The model keeps every result, and the breaker must agree with it. The breaker's window moves
// in steps, so the test accepts both answers if the results in a twentieth of the window matter.
func TestTheBreakerAgreesWithAModelThatKeepsEveryResult(t *testing.T) {
	n := *histories
	var opened atomic.Int64
	for seed := range uint64(n) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(testsize.Seed(seed), 23))
			m := model{failures: 1 + r.IntN(8), window: time.Second}
			timeout := time.Duration(1+r.IntN(1500)) * time.Millisecond
			m.window = max(time.Second, 2*timeout)
			s := newStore(t, wide)
			l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: m.failures, Timeout: timeout, OpenFor: time.Second})
			bad := r.IntN(101)
			pause := 1 + r.IntN(int(400*time.Millisecond))
			for step := range 300 {
				fails := r.IntN(100) < bad
				s.fail(nil)
				if fails {
					s.fail(down)
				}
				take(t, l, 1)
				m.add(fails)
				sure, open := m.opens()
				state := l.Stats().State
				if sure {
					require.Equal(t, open, state == failover.StateOpen, "seed %d, step %d", seed, step)
				}
				if state == failover.StateOpen {
					opened.Add(1)
					s.fail(nil)
					time.Sleep(1200*time.Millisecond + 1)
					take(t, l, 1)
					require.Equal(t, failover.StateClosed, l.Stats().State)
					m.results = nil
				}
				time.Sleep(time.Duration(r.IntN(pause)))
				if r.IntN(30) == 0 {
					bad = r.IntN(101)
				}
			}
		})
	}
	require.NotZero(t, opened.Load())
}

// model applies the breaker's rule for opening in its simplest form.
type model struct {
	failures int
	window   time.Duration
	results  []result
}

type result struct {
	at    time.Time
	fails bool
}

func (m *model) add(fails bool) { m.results = append(m.results, result{time.Now(), fails}) }

// opens reports whether the last result opens the breaker. It is
// sure unless the results in the window's last twentieth decide.
func (m *model) opens() (sure, open bool) {
	open = m.within(m.window)
	now := m.results[len(m.results)-1].at
	for _, r := range m.results {
		if age := now.Sub(r.at); age >= m.window*19/20 && age < m.window && m.within(age) != open {
			return false, open
		}
	}
	return m.within(m.window*19/20) == open, open
}

func (m *model) within(window time.Duration) bool {
	last := m.results[len(m.results)-1]
	if !last.fails {
		return false
	}
	failures, successes, row := 0, 0, 0
	inRow := true
	var began time.Time
	for i := len(m.results) - 1; i >= 0; i-- {
		r := m.results[i]
		if last.at.Sub(r.at) < window {
			if r.fails {
				failures++
			} else {
				successes++
			}
		}
		if inRow = inRow && r.fails; inRow {
			row++
			began = r.at
		}
	}
	return failures >= m.failures && failures >= successes || row >= m.failures && last.at.Sub(began) >= m.window
}

// An operator calls Force during a probe. In a later outage, probes still begin.
func TestAProbeOfBeforeForceDoesNotBlockLaterProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1})
		opens := func() {
			s.fail(down)
			take(t, l, 1)
			require.Equal(t, failover.StateOpen, l.Stats().State)
			time.Sleep(1200*time.Millisecond + 1)
		}
		opens()
		s.fail(takes(40 * time.Millisecond))
		var probe sync.WaitGroup
		probe.Go(func() { take(t, l, 1) })
		time.Sleep(time.Millisecond)
		l.Force(failover.StateClosed)
		l.Force(failover.StateHalfOpen)
		opens()
		probe.Wait()
		s.fail(nil)
		require.False(t, take(t, l, 1).Degraded)
		require.Equal(t, failover.StateClosed, l.Stats().State)
	})
}

// During a probe, other callers are answered at once, even if the probe holds the only turn.
func TestCallersBesideAProbeDoNotWaitForATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1, MaxCalls: 1})
		s.fail(down)
		take(t, l, 1)
		time.Sleep(1200*time.Millisecond + 1)
		s.fail(takes(40 * time.Millisecond))
		var probe sync.WaitGroup
		probe.Go(func() { take(t, l, 1) })
		synctest.Wait()
		began := time.Now()
		require.True(t, take(t, l, 1).Degraded)
		require.Zero(t, time.Since(began))
		probe.Wait()
		require.Equal(t, failover.StateClosed, l.Stats().State)
	})
}

// The longest Duration means "for ever".
func TestABreakerThatShallStayOpenForEverStaysOpen(t *testing.T) {
	for _, openFor := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 6 * 5, 250 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			for range 20 { // each breaker draws its own time
				s := newStore(t, wide)
				s.fail(down)
				l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1, OpenFor: openFor})
				require.True(t, take(t, l, 1).Degraded)
				require.Equal(t, failover.StateOpen, l.Stats().State)
				time.Sleep(time.Hour)
				require.Equal(t, failover.StateOpen, l.Stats().State, "%v", openFor)
			}
		})
	}
}

func TestTheWindowIsTwiceTheTimeoutHoweverLongThatIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 2, Timeout: math.MaxInt64})
		for _, fail := range []func(context.Context) error{down, nil, down} {
			require.Equal(t, failover.StateClosed, l.Stats().State)
			s.fail(fail)
			take(t, l, 1)
			time.Sleep(time.Hour)
		}
		require.EqualValues(t, 1, l.Stats().Opened, "two failures of three results, within the window")
	})
}
