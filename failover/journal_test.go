package failover_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
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

var outages = flag.Int("outages", testsize.Of(8, 300), "random sequences of outages whose lines are counted")

// lines is a log handler that records each line's time.
type lines struct {
	slog.Handler

	mu  sync.Mutex
	all []line
}

type line struct {
	at    time.Time
	level slog.Level
	text  string
	attrs map[string]slog.Value
}

func (ls *lines) Enabled(context.Context, slog.Level) bool { return true }

func (ls *lines) Handle(_ context.Context, r slog.Record) error {
	l := line{at: r.Time, level: r.Level, text: r.Message, attrs: map[string]slog.Value{}}
	r.Attrs(func(a slog.Attr) bool {
		l.attrs[a.Key] = a.Value
		return true
	})
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.all = append(ls.all, l)
	return nil
}

// reported returns the lines so far.
func (ls *lines) reported() []line {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return slices.Clone(ls.all)
}

func (ls *lines) forget() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.all = nil
}

func (ls *lines) String() string {
	var b strings.Builder
	for _, l := range ls.reported() {
		fmt.Fprintln(&b, l.at.Format("15:04:05.000000"), l.level, l.text, l.attrs)
	}
	return b.String()
}

// logged is a limiter with its log and the events of its outages. check compares them.
type logged struct {
	t   *testing.T
	out lines
	s   *store
	l   *failover.Limiter[string]

	mu     sync.Mutex // guards the fields below
	events []time.Time
	opened time.Time   // zero while the breaker is closed
	forced []time.Time // calls to Force
}

func newLogged(t *testing.T, o failover.Options) *logged {
	g := &logged{t: t, s: newStore(t, wide)}
	o.Logger = slog.New(&g.out)
	o.OnStateChange = func(from, to failover.State) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if from == failover.StateClosed {
			g.opened = time.Now()
			g.events = append(g.events, g.opened)
		}
		if to == failover.StateClosed { // the outage covers each second of an open breaker
			for ; g.opened.Before(time.Now()); g.opened = g.opened.Add(time.Second) {
				g.events = append(g.events, g.opened)
			}
			g.events = append(g.events, time.Now())
			g.opened = time.Time{}
		}
	}
	g.l = over(t, g.s, failover.AllowAll[string](), o)
	return g
}

func (g *logged) take(ctx context.Context) {
	d, err := g.l.Take(ctx, "secret-key", 1)
	if err != nil {
		g.t.Errorf("a caller sees %v", err)
	}
	if d.Degraded {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.events = append(g.events, time.Now())
	}
}

func (g *logged) force(to failover.State) {
	g.forced = append(g.forced, time.Now())
	g.l.Force(to)
}

// outage is a time of degraded decisions and an open breaker, without a pause of a minute.
type outage struct{ from, to time.Time }

func (g *logged) outages() (all []outage) {
	slices.SortFunc(g.events, time.Time.Compare)
	for _, at := range g.events {
		if n := len(all); n > 0 && at.Sub(all[n-1].to) < time.Minute {
			all[n-1].to = at
		} else {
			all = append(all, outage{at, at})
		}
	}
	return all
}

// check compares the lines with the outages. The last outage must be over.
func (g *logged) check(at string) {
	t := g.t
	all := g.outages()
	var reported []line
	forced := 0
	for _, l := range g.out.reported() {
		require.NotContains(t, l.text+fmt.Sprint(l.attrs), "secret-key", at)
		if strings.Contains(l.text, "forced") {
			forced++
			continue
		}
		reported = append(reported, l)
	}
	require.Len(t, g.forced, forced, "%s: each call of Force has a line", at)
	for i, o := range all {
		which := fmt.Sprintf("%s, outage %d of %d, %v to %v", at, i, len(all), o.from.Format("15:04:05.000"), o.to.Format("15:04:05.000"))
		n := slices.IndexFunc(reported, func(l line) bool { return l.at.Sub(o.to) > time.Minute })
		if n < 0 {
			n = len(reported)
		}
		mine := reported[:n]
		reported = reported[n:]
		most := func(to time.Time) int {
			most := 2 + int(to.Sub(o.from)/time.Minute)
			for _, f := range g.forced { // each call to Force allows one more line
				if !f.Before(o.from) && !f.After(to) {
					most++
				}
			}
			return most
		}
		require.LessOrEqual(t, n, most(o.to), "%s\n%v", which, &g.out)
		for i, l := range mine {
			require.LessOrEqual(t, i+1, most(l.at), "%s\n%v", which, &g.out)
		}
		if most(o.to.Add(time.Minute)) > 3+int(o.to.Sub(o.from)/time.Minute) {
			continue
		}
		require.NotEmpty(t, mine, which)
		require.True(t, mine[0].at.Equal(o.from), "%s: its beginning\n%v", which, &g.out)
		require.Equal(t, slog.LevelInfo, mine[n-1].level, "%s: the last line is of its end\n%v", which, &g.out)
		for i, l := range mine {
			require.Contains(t, l.attrs, "error", "%s: %v", which, l)
			if i > 0 && l.level == slog.LevelInfo {
				require.Equal(t, slog.LevelWarn, mine[i-1].level, "%s: two ends\n%v", which, &g.out)
			}
		}
	}
	require.Empty(t, reported, "%s: lines about no outage\n%v", at, &g.out)
}

// Outages take seconds, minutes and hours. Stores hang, fail and recover, and an
// operator intervenes. An outage has at most two lines, and one for each minute.
func TestAnOutageHasTwoLinesAndOneEachMinute(t *testing.T) {
	n := *outages
	for seed := range uint64(n) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testsize.Seed(seed), 51))
			o := failover.Options{
				Timeout:  []time.Duration{0, 0, 700 * time.Millisecond}[rng.IntN(3)],
				Failures: rng.IntN(4),
				OpenFor:  []time.Duration{0, 50 * time.Millisecond, 45 * time.Second}[rng.IntN(3)],
				MaxCalls: rng.IntN(3),
			}
			g := newLogged(t, o)
			forces := rng.IntN(3) == 0
			done := make(chan struct{})
			var callers sync.WaitGroup
			for range 1 + rng.IntN(4) {
				mine := rand.New(rand.NewPCG(rng.Uint64(), 52))
				pause := []time.Duration{200 * time.Millisecond, 3 * time.Second, time.Minute}[rng.IntN(3)]
				callers.Go(func() {
					for {
						ctx, cancel := context.Background(), context.CancelFunc(func() {})
						if mine.IntN(5) == 0 {
							ctx, cancel = context.WithTimeout(ctx, time.Duration(1+mine.Int64N(int64(60*time.Millisecond))))
						}
						g.take(ctx)
						cancel()
						select {
						case <-done:
							return
						case <-time.After(time.Duration(1 + mine.Int64N(int64(2*pause)))):
						}
					}
				})
			}
			var bad atomic.Int64
			g.s.fail(func(ctx context.Context) error {
				if rand.Int64N(100) >= bad.Load() {
					return nil
				}
				switch rand.IntN(3) {
				case 0:
					return errDown
				case 1:
					<-ctx.Done()
					return ctx.Err()
				}
				panic("a store")
			})
			for range 1 + rng.IntN(12) {
				bad.Store([]int64{0, 0, 0, 1, 50, 100, 100}[rng.IntN(7)])
				if forces && rng.IntN(2) == 0 {
					g.force([]failover.State{failover.StateClosed, failover.StateHalfOpen, failover.StateOpen}[rng.IntN(3)])
				}
				time.Sleep(time.Duration(rng.Int64N(int64([]time.Duration{time.Second, 20 * time.Second, 3 * time.Minute, 10 * time.Minute}[rng.IntN(4)]))))
			}
			bad.Store(0)
			if forces {
				g.force(failover.StateHalfOpen)
			}
			close(done)
			callers.Wait()
			time.Sleep(time.Second) // calls without a waiting caller may still open the breaker
			for g.l.Stats().State != failover.StateClosed {
				time.Sleep(time.Minute)
				g.take(context.Background())
			}
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			g.check(fmt.Sprintf("seed %d", seed))
		})
	}
}

// An outage of any length has a line at its beginning, one for each minute, and one
// at its end. The last line reports its length and how many decisions were degraded.
func TestTheLinesOfAnOutage(t *testing.T) {
	for _, row := range []struct {
		name  string
		lasts time.Duration
		lines int
	}{
		{"a second", time.Second, 2},
		{"almost a minute", 58 * time.Second, 2},
		{"some minutes", 4*time.Minute + 30*time.Second, 6},
		{"half an hour", 30*time.Minute + 30*time.Second, 32},
	} {
		for _, goroutines := range []int{1, 4} {
			t.Run(fmt.Sprint(row.name, goroutines), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newLogged(t, failover.Options{})
					g.s.fail(down)
					began := time.Now()
					storm(goroutines, func() {
						for time.Since(began) < row.lasts {
							g.take(context.Background())
							time.Sleep(100 * time.Millisecond)
						}
					})
					g.s.fail(nil)
					for g.l.Stats().State != failover.StateClosed {
						time.Sleep(100 * time.Millisecond)
						g.take(context.Background())
					}
					require.Len(t, g.out.reported(), row.lines, "%v", &g.out)
					first, last := g.out.reported()[0], g.out.reported()[row.lines-1]
					require.Equal(t, began, first.at)
					require.Equal(t, "failover: the breaker is closed", last.text)
					require.Equal(t, time.Since(began).Round(time.Millisecond), last.attrs["after"].Duration())
					require.EqualValues(t, g.l.Stats().Instead, last.attrs["decisions"].Uint64())
					require.EqualValues(t, 1, last.attrs["opened"].Int64())
					for i, l := range g.out.reported() {
						require.Equal(t, i == 1 && row.lines > 2, l.text == "failover: the breaker is open", "%v", &g.out)
						require.Equal(t, "unavailable", l.attrs["failure"].String())
						require.Equal(t, errDown, l.attrs["error"].Any())
					}
					time.Sleep(time.Hour)
					require.Len(t, g.out.reported(), row.lines, "%v", &g.out)
				})
			})
		}
	}
}

// If the breaker stays closed, an outage is over after a minute without a degraded decision.
func TestTheLinesOfFailuresThatDoNotOpenTheBreaker(t *testing.T) {
	for failures, want := range map[int]int{1: 2, 3: 2, 4: 3, 13: 6} { // one failure each 20 seconds
		synctest.Test(t, func(t *testing.T) {
			g := newLogged(t, failover.Options{Failures: 1000})
			for range failures {
				g.s.fail(down)
				g.take(context.Background())
				g.s.fail(nil)
				for range 20 {
					time.Sleep(time.Second)
					g.take(context.Background())
				}
			}
			time.Sleep(time.Hour)
			require.Len(t, g.out.reported(), want, "%d failures\n%v", failures, &g.out)
			last := g.out.reported()[want-1]
			require.Equal(t, "failover: the primary limiter decides again", last.text)
			require.EqualValues(t, failures, last.attrs["decisions"].Uint64())
			require.Equal(t, time.Duration(failures-1)*20*time.Second, last.attrs["after"].Duration())

			g.s.fail(func(context.Context) error { panic(errDown) })
			g.take(context.Background())
			time.Sleep(2 * time.Second)
			last = g.out.reported()[want]
			require.EqualValues(t, 1, last.attrs["decisions"].Uint64(), "another outage")
			require.Equal(t, "panic", last.attrs["failure"].String())
		})
	}
}

// The log gives a reason for a degraded decision even if the primary has not failed, or has failed long ago.
func TestTheLogNamesTheCauseOfDegradedDecisionsWithoutAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLogged(t, failover.Options{MaxCalls: 1, Timeout: 10 * time.Second})
		g.s.fail(down)
		g.take(context.Background())
		time.Sleep(time.Hour)
		require.Len(t, g.out.reported(), 2)
		g.s.fail(takes(9 * time.Second))
		storm(3, func() { g.take(context.Background()) })
		time.Sleep(time.Hour)
		require.Equal(t, "busy", g.out.reported()[2].attrs["failure"].String())
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		g.take(ctx)
		time.Sleep(time.Hour)
		require.Equal(t, "deadline", g.out.reported()[4].attrs["failure"].String())
		require.Len(t, g.out.reported(), 6)
	})
}

// An outage that comes back within a minute is the same outage, and has no more lines.
func TestTheLogOfAnOutageThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLogged(t, failover.Options{Failures: 1})
		fails := func(d time.Duration) {
			g.s.fail(down)
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				g.take(context.Background())
			}
			g.s.fail(nil)
			for g.l.Stats().State != failover.StateClosed {
				time.Sleep(time.Second)
				g.take(context.Background())
			}
		}
		began := time.Now()
		fails(5 * time.Second)
		require.Len(t, g.out.reported(), 2)
		time.Sleep(3 * time.Second)
		fails(10 * time.Minute)
		require.Len(t, g.out.reported(), 12, "%v", &g.out)
		require.LessOrEqual(t, g.out.reported()[2].at.Sub(began), 2*time.Minute+time.Second)
		require.EqualValues(t, 2, g.out.reported()[2].attrs["opened"].Int64())
		last := g.out.reported()[11]
		require.Equal(t, time.Since(began), last.attrs["after"].Duration())
		require.EqualValues(t, g.l.Stats().Instead, last.attrs["decisions"].Uint64())
		time.Sleep(time.Minute + 1)
		fails(time.Second)
		require.Len(t, g.out.reported(), 14, "%v", &g.out)
	})
}

// Each call to Force logs a line, and begins or ends an outage.
func TestTheLinesOfForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLogged(t, failover.Options{})
		texts := func() (all []string) {
			for _, l := range g.out.reported() {
				all = append(all, strings.TrimPrefix(l.text, "failover: "))
			}
			g.out.forget()
			return all
		}
		g.force(failover.StateOpen)
		for range 25 {
			g.take(context.Background())
			time.Sleep(5 * time.Second)
		}
		for _, l := range g.out.reported()[1:] {
			require.True(t, l.attrs["forced"].Bool())
			require.NotContains(t, l.attrs, "error")
		}
		g.force(failover.StateClosed)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"the breaker is forced open", "deciding without the primary limiter",
			"deciding without the primary limiter", "the breaker is forced closed"}, texts())

		g.force(failover.StateOpen)
		g.take(context.Background())
		g.force(failover.StateHalfOpen)
		g.take(context.Background())
		require.Equal(t, failover.StateClosed, g.l.Stats().State)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"the breaker is forced open", "the breaker is forced no more", "the breaker is closed"}, texts())
	})
}

// A recent failure is a more useful reason than callers without a turn.
func TestTheLogNamesARecentFailureBeforeOtherReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLogged(t, failover.Options{MaxCalls: 1, Timeout: time.Second})
		for range 2 {
			g.s.fail(down)
			g.take(context.Background())
			time.Sleep(50 * time.Second)
		}
		g.s.fail(takes(900 * time.Millisecond))
		storm(3, func() { g.take(context.Background()) })
		require.Len(t, g.out.reported(), 2)
		require.Equal(t, "unavailable", g.out.reported()[1].attrs["failure"].String())
		require.GreaterOrEqual(t, g.out.reported()[1].attrs["decisions"].Uint64(), uint64(3))
		time.Sleep(time.Hour)
	})
}

// An outage's lines contain nothing from the previous outage.
func TestTheLogOfAnOutageContainsNothingOfTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLogged(t, failover.Options{Failures: 2})
		takes := func(lasts time.Duration) {
			for began := time.Now(); time.Since(began) < lasts; time.Sleep(500 * time.Millisecond) {
				g.take(context.Background())
			}
		}
		g.s.fail(down)
		takes(3 * time.Second)
		g.s.fail(nil)
		takes(90 * time.Second)
		require.Equal(t, failover.StateClosed, g.l.Stats().State)
		before := len(g.out.reported())
		require.Contains(t, g.out.reported()[before-1].attrs, "error")
		time.Sleep(10 * time.Minute)

		began, instead := time.Now(), g.l.Stats().Instead
		g.force(failover.StateOpen)
		takes(3 * time.Minute)
		lines := g.out.reported()[before+1:]
		require.Len(t, lines, 2, "%v", &g.out)
		for _, l := range lines {
			require.NotContains(t, l.attrs, "error", "%v", &g.out)
			require.EqualValues(t, 1, l.attrs["opened"].Int64(), "%v", &g.out)
			require.Equal(t, l.at.Sub(began), l.attrs["after"].Duration())
			require.LessOrEqual(t, l.attrs["decisions"].Uint64(), g.l.Stats().Instead-instead)
		}
		g.force(failover.StateClosed)
		time.Sleep(time.Hour)
	})
}

// An outage lasts as long as the breaker is open, even without calls.
func TestAnOutageWithoutTrafficLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLogged(t, failover.Options{})
		began := time.Now()
		g.s.fail(down)
		for range 5 {
			g.take(context.Background())
		}
		require.Equal(t, failover.StateOpen, g.l.Stats().State)
		time.Sleep(5 * time.Minute)
		require.Len(t, g.out.reported(), 1, "%v", &g.out)
		g.s.fail(nil)
		g.take(context.Background())
		require.Len(t, g.out.reported(), 2, "%v", &g.out)
		last := g.out.reported()[1]
		require.Equal(t, "failover: the breaker is closed", last.text)
		require.EqualValues(t, 5, last.attrs["decisions"].Uint64())
		require.Equal(t, time.Since(began), last.attrs["after"].Duration())
		time.Sleep(time.Hour)
	})
}

// Force may be called during an outage. Its line does not replace a line of the outage.
func TestForceInAnOutageCostsNoLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLogged(t, failover.Options{Failures: 1000})
		g.s.fail(down)
		for second := range 200 {
			if second == 50 {
				g.force(failover.StateOpen)
			}
			g.take(context.Background())
			time.Sleep(time.Second)
		}
		var at []time.Duration
		for _, l := range g.out.reported() {
			at = append(at, l.at.Sub(g.out.reported()[0].at))
		}
		require.Equal(t, []time.Duration{0, 50 * time.Second, time.Minute, 2 * time.Minute, 3 * time.Minute}, at, "%v", &g.out)
		g.force(failover.StateClosed)
		time.Sleep(time.Hour)
	})
}
