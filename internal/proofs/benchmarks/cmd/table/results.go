package main

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// results has a file's lines of benchmark output, in order.
type results struct {
	lines  []line
	config map[string]string // for example cpu, go and date
}

// line is one measurement. For example, BenchmarkPeers/work=hot/peer=floor
// has the base Peers and the dimensions work and peer.
type line struct {
	base   string
	dims   map[string]string
	values map[string]float64 // by unit
}

func read(file string) (results, error) {
	f, err := os.Open(file)
	if err != nil {
		return results{}, err
	}
	defer f.Close()
	r := results{config: map[string]string{}}
	in := benchfmt.NewReader(f, file)
	for in.Scan() {
		switch rec := in.Result().(type) {
		case *benchfmt.SyntaxError:
			return results{}, rec
		case *benchfmt.Result:
			r.add(rec)
		}
	}
	return r, in.Err()
}

func (r *results) add(rec *benchfmt.Result) {
	for _, key := range []string{"cpu", "go", "date"} {
		r.config[key] = rec.GetConfig(key)
	}
	base, parts := rec.Name.Parts()
	l := line{string(base), map[string]string{}, map[string]float64{}}
	for _, part := range parts {
		if key, value, ok := strings.Cut(strings.TrimPrefix(string(part), "/"), "="); ok {
			l.dims[key] = value
		}
	}
	for _, v := range rec.Values {
		value, unit := v.Value, v.Unit
		if v.OrigUnit != "" {
			value, unit = v.OrigValue, v.OrigUnit
		}
		l.values[unit] = value
	}
	r.lines = append(r.lines, l)
}

// samples are several measurements of one figure.
type samples []float64

// median returns the median, or 0 if there are no samples.
func (s samples) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
