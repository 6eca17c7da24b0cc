package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

func TestMain(m *testing.M) {
	if isWorker() || isSlotsWorker() || isHandoverWorker() {
		return
	}
	os.Exit(m.Run())
}

// In this short version of the proof, real processes use a real server for half a second each, or longer
// on a busy machine. The command also checks how much of its bound a fleet reaches, and how fast.
func TestNoKeyIsAdmittedBeyondItsBound(t *testing.T) {
	redistest.Program(t)
	s, err := startServer(t.Context())
	require.NoError(t, err)
	defer s.close()
	for i, tr := range trials() {
		if !testsize.Long() && i > 0 && !strings.HasPrefix(tr.what, "4 hot") {
			continue
		}
		t.Run(fmt.Sprintf("%s, %s", tr.name, tr.what), func(t *testing.T) {
			change := tr.change
			tr.change = func(s *setup) { change(s); s.Nodes, s.Demand = 4, min(s.Demand, 5_000) }
			for lasts := 400 * time.Millisecond; ; lasts *= 3 {
				o, err := runTrial(t.Context(), s, tr, lasts)
				require.NoError(t, err)
				require.Zero(t, o.over, "%d admitted, bound %d", o.admitted, o.limit)
				if o.admitted > 0 && (!tr.exact || o.admitted == o.limit) {
					break
				}
				require.Less(t, lasts, 20*time.Second, "%d admitted, bound %d", o.admitted, o.limit)
			}
		})
	}
}

// In this short version of the proof, processes are killed while they hold slots.
func TestSlotsOfKilledProcesses(t *testing.T) {
	redistest.Program(t)
	s, err := startServer(t.Context())
	require.NoError(t, err)
	defer s.close()
	for lasts := 1500 * time.Millisecond; ; lasts *= 3 { // a busy machine takes long to start a process
		r, err := killFleet(t.Context(), s, 4, lasts)
		require.NoError(t, err)
		require.Zero(t, r.over, "%d in flight of %d", r.most, slots)
		require.Zero(t, r.left)
		if len(r.violations()) == 0 {
			break
		}
		require.Less(t, lasts, time.Minute, r.violations())
	}
}

// In this short version of the proof, slots pass between callers. The command measures how fast they do.
func TestSlotsPassFromCallerToCaller(t *testing.T) {
	redistest.Program(t)
	s, err := startServer(t.Context())
	require.NoError(t, err)
	defer s.close()
	tr := handoverTrials[0]
	r, err := tr.run(t.Context(), s, time.Second)
	require.NoError(t, err)
	require.LessOrEqual(t, r.most, tr.limit)
	require.Positive(t, r.jobs)
	require.LessOrEqual(t, r.overtaken, 30)
}

// The second of these four jobs begins before the first, although it called later.
func TestHandoverFigures(t *testing.T) {
	jobs := []job{{Called: 0, Began: 200, Ended: 300}, {Called: 50, Began: 100, Ended: 200}, {Called: 60, Began: 900, Ended: 1000}, {Called: 70, Began: 1100, Ended: 1200}}
	r := handoverTrial{limit: 1, work: 100}.measure(jobs)
	require.Equal(t, 1, r.overtaken)
	require.Equal(t, 1, r.most)
	require.InDelta(t, 0.25, r.ofIdeal, 0.001) // from 200 to 1000 there is time for 8 jobs, and 2 begin
	require.InDelta(t, 0.25, r.busy, 0.001)
}

// In this short version of the proof, two regions share a budget, and the link between them is cut.
func TestTwoRegionsHoldOneBudget(t *testing.T) {
	redistest.Program(t)
	for i, r := range regions() {
		if i != 5 && (!testsize.Long() || i != 3) {
			continue
		}
		t.Run(fmt.Sprintf("%s, %.1f of the budget, %.0f %% far, cut for %v", r.name, r.load, 100*r.far, r.cut), func(t *testing.T) {
			for r.cut = min(r.cut, 700*time.Millisecond); ; r.cut *= 3 { // a machine may stop for as long
				res, err := runRegion(t.Context(), r, time.Second, nil)
				require.NoError(t, err)
				require.LessOrEqual(t, res.admitted[0], res.outageBound(0))
				require.Positive(t, res.admitted[0])
				require.Empty(t, res.notices, "nobody sees an error")
				if r.cut == 0 || res.count().Degraded > 0 {
					break
				}
				require.Less(t, r.cut, 20*time.Second, "the far region goes on alone")
			}
		})
	}
}

// 64 goroutines in four processes make decisions while each fault strikes. The command
// checks how fast the breakers close, and package failover tests that exactly.
func TestAFleetGetsOverFaults(t *testing.T) {
	redistest.Program(t)
	kinds := []string{"failover", "failover over lease", "lease over failover"}
	for i, f := range append(strains(), faults()...) {
		if !testsize.Long() && i > 1 {
			break
		}
		t.Run(f.name, func(t *testing.T) {
			p := phases{100 * time.Millisecond, 1500 * time.Millisecond}
			f.calm = false                                                     // only the command checks that the fallback is not needed
			for f.lasts = min(f.lasts, 500*time.Millisecond); ; f.lasts *= 3 { // a machine may stop for as long
				o, err := brave(t.Context(), kinds[i%len(kinds)], f, p, func(s *setup) { s.Nodes, s.Goroutines, s.Demand = 4, 16, 100 })
				require.NoError(t, err)
				require.Empty(t, o.violations(20*time.Second, math.MaxInt64))
				if f.lasts == 0 || o.result.count().Degraded > 0 {
					break
				}
				require.Less(t, f.lasts, 20*time.Second, "the fault was felt")
			}
		})
	}
}

func TestARunFailsIfAProcessDoes(t *testing.T) {
	s := boundsSetup(time.Second)
	s.Engine, s.Nodes = "imagined", 2
	_, err := runFleet(t.Context(), s, nil)
	require.ErrorContains(t, err, `there is no engine "imagined"`)
}

func TestViolationsAreNoticed(t *testing.T) {
	s := boundsSetup(time.Second)
	s.Timeout = 100 * time.Millisecond
	r := &result{setup: s, admitted: []int64{302, 3}, decided: []int64{500, 5}, took: time.Second, notices: []string{"an error"}}
	o := trial{bound: (*result).centralBound, least: 2, most: 0.01, exact: true}.judge(r, 300)
	require.Equal(t, []string{
		"1 keys were admitted more than 200",
		"302 admitted, want exactly 200",
		"151.0 % of the bound was admitted, want 200.0 %",
		"one round trip for 2 decisions, want 100",
		"an error",
	}, o.violations())

	d := &ordeal{result: r, healed: time.Second}
	d.result.samples = []sample{{At: 4 * time.Second, State: "open", Errors: 1}}
	d.result.reports = []*report{{Before: 3, After: 4}}
	d.result.latency.add(time.Second)
	d.measure()
	require.Len(t, d.violations(0, 2*time.Second), 5)
}

func TestTheBoundOfAnOutageCountsEachProcessThatWasAlone(t *testing.T) {
	s := chaosSetup() // 50 a second, burst 100, 8 processes
	r := &result{setup: s, took: 10 * time.Second, reports: []*report{{Degraded: 2 * time.Second}, {}}}
	require.EqualValues(t, 100+500+(12+12+1), r.outageBound(0))
	require.EqualValues(t, 100+500+(12+12+1)+100, r.outageBound(1))
	r.setup.MaxBatch = 10
	require.EqualValues(t, 100+500+(12+12+1)+80, r.outageBound(0))
}

func TestTheHistogramsQuantilesAreExactToFourPercent(t *testing.T) {
	var h histogram
	require.Zero(t, h.quantile(0.5))
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	require.InEpsilon(t, 500*time.Millisecond, h.quantile(0.5), 0.05)
	require.InEpsilon(t, 999*time.Millisecond, h.quantile(0.999), 0.05)
	h.add(0)
	h.add(1 << 62)
}

func TestTheProxyDropsRepliesAfterExecution(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	executed := make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				lines := bufio.NewScanner(c)
				for lines.Scan() {
					executed <- lines.Text()
					fmt.Fprintln(c, "done", lines.Text())
				}
			}()
		}
	}()
	p, err := startProxy(l.Addr().String())
	require.NoError(t, err)
	defer p.close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.addr())
		require.NoError(t, err)
		return c
	}
	c := dial()
	defer c.Close()
	fmt.Fprintln(c, "one")
	reply, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "done one\n", reply)
	require.Equal(t, "one", <-executed)

	p.dropping.Store(true)
	fmt.Fprintln(c, "two")
	require.Equal(t, "two", <-executed)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestThePictureIsWellFormed(t *testing.T) {
	st := &storm{result: &result{setup: chaosSetup()}}
	st.result.setup.Lasts = 10 * time.Second
	for i := range 100 {
		st.result.samples = append(st.result.samples, sample{At: time.Duration(i+1) * sampleEvery, Decisions: 90, Allowed: 10, Degraded: int64(i % 2)})
	}
	st.faults = []struck{{faults()[0], 3 * time.Second, 5 * time.Second}}
	st.collect()
	d := xml.NewDecoder(strings.NewReader(st.picture()))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.EqualValues(t, 100+8*12+10+10, st.bound[15]-st.bound[14],
		"the store has lost its data, each process is alone, and 200 ms are regained, by all and by each alone")
}

func TestTablesAreAligned(t *testing.T) {
	var out bytes.Buffer
	tb := newTable("a", "bcd")
	tb.row("1 000", "µ")
	require.NoError(t, tb.print(&out))
	require.Equal(t, "| a     | bcd |\n|-------|-----|\n| 1 000 | µ   |\n\n", out.String())
	require.Equal(t, "1 234 567", thousands(1_234_567))
	require.Equal(t, "12ms", short(12_345_678))
}

func TestAnUnknownPartIsAnError(t *testing.T) {
	_, err := prove(context.Background(), options{only: "luck"})
	require.ErrorContains(t, err, `-only is "luck"`)
}
