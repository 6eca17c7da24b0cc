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

// result is one go test's result.
type result struct {
	failed   bool
	failures []string            // the failed tests
	skipped  counts              // without the tests to run alone
	later    map[string][]string // the tests to run alone, by package
}

func (r *result) word() string {
	if r.failed {
		return "FAILED"
	}
	return "passed"
}

// counts maps packages and reasons to the number of skipped tests.
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

// remove removes a reason, and returns how many tests were skipped for it.
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

// event is an event from test2json or go build.
type event struct {
	Action, Package, Test, Output string
}

// test is a package's test.
type test struct{ pkg, name string }

// place matches the beginning of a test's message.
var place = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// report reads the output of go test -json. It prints each package's
// output, unless the package has no tests, and failed tests' output.
func report(in io.Reader, out io.Writer) (*result, error) {
	r := &reporter{out: out, written: make(map[test][]string), result: &result{skipped: make(counts), later: make(map[string][]string)}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &e) != nil || e.Action == "":
			fmt.Fprintf(out, "%s", line)
		case e.Test != "":
			r.ofTest(e)
		default:
			r.ofPackage(e)
		}
		if err == io.EOF {
			return r.result, nil
		}
		if err != nil {
			return r.result, err
		}
	}
}

// reporter holds back running tests' output.
type reporter struct {
	out     io.Writer
	written map[test][]string
	result  *result
}

// ofPackage processes a package's event.
func (r *reporter) ofPackage(e event) {
	switch e.Action {
	case "build-output", "output":
		if e.Output != "PASS\n" && e.Output != "testing: warning: no tests to run\n" && !strings.HasPrefix(e.Output, "?   \t") {
			fmt.Fprint(r.out, e.Output)
		}
	case "fail":
		for _, t := range r.unended(e.Package) {
			r.result.failures = append(r.result.failures, t.name)
			r.print(t)
		}
	case "pass":
		for _, t := range r.unended(e.Package) {
			r.print(t)
		}
	}
}

// ofTest processes a test's event.
func (r *reporter) ofTest(e event) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") { // lines of RUN, PAUSE, CONT and NAME are dropped
			r.written[t] = append(r.written[t], e.Output)
		}
	case "fail":
		if !strings.Contains(e.Test, "/") {
			r.result.failures = append(r.result.failures, e.Test)
		}
		r.print(t)
	case "skip":
		r.skip(t, reason(r.written[t]))
		delete(r.written, t)
	case "pass":
		delete(r.written, t)
	}
}

func (r *reporter) skip(t test, why string) {
	if why != testsize.Later {
		r.result.skipped.count(t.pkg, why, 1)
		return
	}
	name, _, _ := strings.Cut(t.name, "/")
	if later := r.result.later; !slices.Contains(later[t.pkg], name) {
		later[t.pkg] = append(later[t.pkg], name)
	}
}

// print prints a test's output.
func (r *reporter) print(t test) {
	fmt.Fprint(r.out, strings.Join(r.written[t], ""))
	delete(r.written, t)
}

// unended returns a package's benchmarks, and the tests cut short by a crash.
func (r *reporter) unended(pkg string) []test {
	tests := slices.DeleteFunc(slices.Collect(maps.Keys(r.written)), func(t test) bool { return t.pkg != pkg })
	return slices.SortedFunc(slices.Values(tests), func(a, b test) int { return strings.Compare(a.name, b.name) })
}

// reason returns a skipped test's last message.
func reason(written []string) string {
	for _, line := range slices.Backward(written) {
		if p := place.FindString(line); p != "" {
			return strings.TrimSpace(strings.TrimPrefix(line, p))
		}
	}
	return "it gives no reason"
}
