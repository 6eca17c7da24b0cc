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

	"github.com/weir-go/ratelimit/internal/dev/overload"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/proofs/internal/peergate"
)

var (
	incidents = flag.String("incidents", ".", "play the incidents whose name matches")
	seeds     = flag.Int("incident-seeds", testsize.Of(1, 3), "play each so many times")
)

// incidentLimit is one of the limits that the incidents test.
type incidentLimit struct {
	name   string
	bubble bool // it reads the time itself, so it runs in a bubble
	new    func(i *overload.Incident) overload.Gate
}

const incidentBound = 1000

var incidentLimits = []incidentLimit{
	{"Learn", false, func(i *overload.Incident) overload.Gate { return overload.NewLimiter(incidentBound, i.Adaptive()) }},
	{"failsafe-go", true, func(*overload.Incident) overload.Gate { return peergate.NewFailsafe(incidentBound) }},
	{"Gradient2", false, func(*overload.Incident) overload.Gate { return &overload.Gradient2{Most: incidentBound} }},
}

// A partial outage stays partial, whatever its cause. Goodput is close to the best fixed limit's, both for one
// process and for several that share a backend with costly refusals. With -v, a table compares other libraries.
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
		if i.Shared > 0 {
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
					if at == 0 {
						assert.GreaterOrEqual(t, part, i.Reach(stage, n), "%s, %s: %d × %s", i.Name, s.Name, n, l.name)
					}
				}
				fmt.Fprintln(w)
			}
		}
	}
}

// mean returns each stage's mean goodput over the seeds.
func mean(i *overload.Incident, play func(seed uint64) []overload.Result) []float64 {
	sum := make([]float64, len(i.Phases))
	for seed := range *seeds {
		for at, r := range play(uint64(seed + 1)) {
			sum[at] += r.Goodput / float64(*seeds)
		}
	}
	return sum
}
