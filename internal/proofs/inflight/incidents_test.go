package inflight

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"text/tabwriter"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/overload"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/proofs/internal/peergate"
)

var (
	incidents = flag.String("incidents", ".", "play the incidents whose name matches")
	seeds     = flag.Int("incident-seeds", testsize.Of(1, 3), "play each so many times")
)

// incidentLimit is a limit that incidents are played with.
type incidentLimit struct {
	name   string
	bubble bool // it reads the time itself
	new    func(i *overload.Incident) overload.Gate
}

const incidentBound = 1000

func ours(name string, adaptive func(i *overload.Incident) inflight.Adaptive) incidentLimit {
	return incidentLimit{name, false, func(i *overload.Incident) overload.Gate {
		return overload.NewLimiter(incidentBound, adaptive(i))
	}}
}

var incidentLimits = []incidentLimit{
	ours("Gradient", func(i *overload.Incident) inflight.Adaptive {
		if i.TooSlow {
			return inflight.Gradient(&inflight.GradientOptions{Timeout: 25 * i.Service})
		}
		return inflight.Gradient(nil)
	}),
	ours("Vegas", func(i *overload.Incident) inflight.Adaptive {
		if i.TooSlow {
			return inflight.Vegas(&inflight.VegasOptions{Timeout: 25 * i.Service})
		}
		return inflight.Vegas(nil)
	}),
	ours("AIMD", func(i *overload.Incident) inflight.Adaptive {
		return inflight.AIMD(&inflight.AIMDOptions{Timeout: 5 * i.Service / 2})
	}),
	{"failsafe-go", true, func(*overload.Incident) overload.Gate { return peergate.NewFailsafe(incidentBound) }},
	{"Gradient2", false, func(*overload.Incident) overload.Gate { return &overload.Gradient2{Most: incidentBound} }},
}

// least is the share of the best fixed limit's goodput that Gradient, Vegas and AIMD reach, each in one process.
var least = map[string][3]float64{
	"20 % quick 503":                     {0.95, 0.95, 0.95},
	"30 % quick 503":                     {0.95, 0.95, 0.95},
	"50 % quick 503":                     {0.95, 0.95, 0.95},
	"90 % quick 503":                     {0.9, 0.9, 0.9},
	"50 % quick 503, 3 retries":          {0.95, 0.95, 0.95},
	"errors grow from 0 to 60 %":         {0.85, 0.85, 0.85},
	"40 % fail after their work":         {0.95, 0.95, 0.95},
	"30 % fail after 200 ms":             {0.95, 0.95, 0.95},
	"30 % hang for 2 s":                  {0.6, 0.8, 0.6},
	"33 % have a deadline of 1 ms":       {0.95, 0.95, 0.95},
	"a cap of 16, a refusal costs 10 ms": {0.85, 0.85, 0.83},
	"the cap falls from 64 to 16":        {0.82, 0.82, 0.77},
	"latency × 10":                       {0.95, 0.92, 0},
	"latency × 2":                        {0.95, 0.95, 0.95},
	"10 minutes of constant 10 s":        {0.9, 0.9, 0.9},
}

// leastShared is the same of several processes in front of one backend.
var leastShared = map[string]float64{
	"50 % quick 503":                     0.93,
	"a cap of 16, a refusal costs 10 ms": 0.75,
	"the cap falls from 64 to 16":        0.75,
}

// A partial outage stays partial, whatever fails: goodput is near that of the best fixed limit, of one process, and of
// several that share a backend whose refusals cost it work. With -v, a table shows other libraries beside these limits.
func TestPartialOutagesStayPartial(t *testing.T) {
	only := regexp.MustCompile(*incidents)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', tabwriter.Debug)
	defer w.Flush()
	fmt.Fprint(w, "| incident\t stage\t processes\t best fixed limit\t")
	for _, l := range incidentLimits {
		fmt.Fprintf(w, " %s\t", l.name)
	}
	fmt.Fprintf(w, "\n|---\t%s\n", strings.Repeat(" ---\t", 3+len(incidentLimits)))
	for _, i := range overload.Incidents() {
		if !only.MatchString(i.Name) {
			continue
		}
		processes := []int{1}
		if _, ok := leastShared[i.Name]; ok {
			processes = []int{1, 4, 8}
		}
		best := mean(&i, func(seed uint64) []overload.Result {
			return i.Best(seed, 4, 8, 12, 16, 20, 28, 40, 64, 100, 160, 400, 1000)
		})
		for _, n := range processes {
			goodput := make([][]float64, len(incidentLimits))
			for at, l := range incidentLimits {
				goodput[at] = mean(&i, func(seed uint64) (all []overload.Result) {
					one := func() {
						f := new(overload.Fleet)
						for range n {
							f.Gates = append(f.Gates, l.new(&i))
						}
						all = i.Play(f, seed)
					}
					if !l.bubble {
						one()
						return all
					}
					synctest.Test(t, func(*testing.T) { one() })
					return all
				})
			}
			for stage, s := range i.Phases {
				if s.Name == "" {
					continue
				}
				fmt.Fprintf(w, "| %s\t %s\t %d\t %.0f/s\t", i.Name, s.Name, n, best[stage])
				for at, l := range incidentLimits {
					part := goodput[at][stage] / best[stage]
					fmt.Fprintf(w, " %.0f %%\t", 100*part)
					want := leastShared[i.Name]
					if n == 1 && at < 3 {
						want = least[i.Name][at]
					}
					if s.Name == "after" {
						want = min(want, 0.9)
					}
					if at < 3 {
						assert.GreaterOrEqual(t, part, want, "%s, %s: %d × %s", i.Name, s.Name, n, l.name)
					}
				}
				fmt.Fprintln(w)
			}
		}
	}
}

// mean is the mean goodput of each stage over the seeds.
func mean(i *overload.Incident, play func(seed uint64) []overload.Result) []float64 {
	sum := make([]float64, len(i.Phases))
	for seed := range *seeds {
		for at, r := range play(uint64(seed + 1)) {
			sum[at] += r.Goodput / float64(*seeds)
		}
	}
	return sum
}
