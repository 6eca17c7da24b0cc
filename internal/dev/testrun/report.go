package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// result is the result of one go test.
type result struct {
	failed   bool
	failures []string            // the tests that failed
	skipped  counts              // without the tests that are to run alone
	later    map[string][]string // these, by package
}

func (r *result) word() string {
	if r.failed {
		return "FAILED"
	}
	return "passed"
}

// counts are numbers of skipped tests, by package and reason.
type counts map[string]map[string]int

func (c counts) count(pkg, why string, n int) {
	if c[pkg] == nil {
		c[pkg] = make(map[string]int)
	}
	c[pkg][why] += n
}

func (c counts) add(of counts) {
	for pkg, reasons := range of {
		for why, n := range reasons {
			c.count(pkg, why, n)
		}
	}
}

// remove drops a reason, and returns the number of tests that were skipped for it.
func (c counts) remove(why string) int {
	total := 0
	for pkg, reasons := range c {
		total += reasons[why]
		if delete(reasons, why); len(reasons) == 0 {
			delete(c, pkg)
		}
	}
	return total
}

func (c counts) print(out io.Writer) {
	if len(c) > 0 {
		fmt.Fprintln(out, "\nskipped:")
	}
	for _, pkg := range slices.Sorted(maps.Keys(c)) {
		for _, why := range slices.Sorted(maps.Keys(c[pkg])) {
			fmt.Fprintf(out, "%6d  %s: %s\n", c[pkg][why], pkg, why)
		}
	}
}

// event is one of test2json's, or of go build's.
type event struct {
	Action, Package, Test, Output string
}

// test is one test of a package.
type test struct{ pkg, name string }

// place matches the beginning of a test's message.
var place = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// report reads the output of go test -json. It prints the packages that have tests, and the output of tests that failed.
func report(in io.Reader, out io.Writer) (*result, error) {
	r := &result{skipped: make(counts), later: make(map[string][]string)}
	written := make(map[test][]string)
	tell := func(t test) {
		fmt.Fprint(out, strings.Join(written[t], ""))
		delete(written, t)
	}
	unended := func(pkg string) []test { // benchmarks, and tests that a crash has kept from ending
		names := slices.DeleteFunc(slices.Collect(maps.Keys(written)), func(t test) bool { return t.pkg != pkg })
		return slices.SortedFunc(slices.Values(names), func(a, b test) int { return strings.Compare(a.name, b.name) })
	}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &e) != nil || e.Action == "":
			fmt.Fprintf(out, "%s", line)
		case e.Action == "build-output", e.Action == "output" && e.Test == "":
			if e.Output != "PASS\n" && e.Output != "testing: warning: no tests to run\n" && !strings.HasPrefix(e.Output, "?   \t") {
				fmt.Fprint(out, e.Output)
			}
		case e.Action == "output" && strings.HasPrefix(e.Output, "=== "): // RUN, PAUSE, CONT, NAME
		case e.Action == "output":
			t := test{e.Package, e.Test}
			written[t] = append(written[t], e.Output)
		case e.Action == "fail" && e.Test != "":
			if !strings.Contains(e.Test, "/") {
				r.failures = append(r.failures, e.Test)
			}
			tell(test{e.Package, e.Test})
		case e.Action == "fail":
			for _, t := range unended(e.Package) {
				r.failures = append(r.failures, t.name)
				tell(t)
			}
		case e.Action == "skip" && e.Test != "":
			t := test{e.Package, e.Test}
			why := reason(written[t])
			if why == testsize.Later {
				name, _, _ := strings.Cut(t.name, "/")
				if !slices.Contains(r.later[t.pkg], name) {
					r.later[t.pkg] = append(r.later[t.pkg], name)
				}
			} else {
				r.skipped.count(t.pkg, why, 1)
			}
			delete(written, t)
		case e.Action == "pass" && e.Test != "":
			delete(written, test{e.Package, e.Test})
		case e.Action == "pass":
			for _, t := range unended(e.Package) {
				tell(t)
			}
		}
		if err == io.EOF {
			return r, nil
		}
		if err != nil {
			return r, err
		}
	}
}

// reason returns the last message of a skipped test.
func reason(written []string) string {
	for _, line := range slices.Backward(written) {
		if p := place.FindString(line); p != "" {
			return strings.TrimSpace(strings.TrimPrefix(line, p))
		}
	}
	return "it gives no reason"
}
