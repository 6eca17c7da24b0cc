// Testreport reads what go test -json writes, prints what go test writes without that, and at the end how many tests of each package
// were skipped, and why. See scripts/test.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// event is one of test2json's, or of go build's.
type event struct {
	Action, Package, Test, Output string
}

// test is one test of a package, and what it has written.
type test struct{ pkg, name string }

// place is what a message of a test begins with.
var place = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

func report(in io.Reader, out io.Writer) error {
	written := make(map[test][]string)
	skipped := make(map[string]map[string]int) // by package and reason
	tell := func(t test) {
		fmt.Fprint(out, strings.Join(written[t], ""))
		delete(written, t)
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
			if e.Output != "PASS\n" {
				fmt.Fprint(out, e.Output)
			}
		case e.Action == "output":
			t := test{e.Package, e.Test}
			written[t] = append(written[t], e.Output)
		case e.Action == "fail" && e.Test != "":
			tell(test{e.Package, e.Test})
		case e.Action == "fail": // perhaps before a test could end
			for _, t := range slices.SortedFunc(maps.Keys(written), func(a, b test) int { return strings.Compare(a.name, b.name) }) {
				if t.pkg == e.Package {
					tell(t)
				}
			}
		case e.Action == "skip" && e.Test != "":
			t := test{e.Package, e.Test}
			if skipped[t.pkg] == nil {
				skipped[t.pkg] = make(map[string]int)
			}
			skipped[t.pkg][reason(written[t])]++
			delete(written, t)
		case e.Action == "pass":
			delete(written, test{e.Package, e.Test})
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if len(skipped) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nskipped:")
	for _, pkg := range slices.Sorted(maps.Keys(skipped)) {
		for _, why := range slices.Sorted(maps.Keys(skipped[pkg])) {
			fmt.Fprintf(out, "%6d  %s: %s\n", skipped[pkg][why], pkg, why)
		}
	}
	return nil
}

// reason returns what a skipped test said of it.
func reason(written []string) string {
	for _, line := range written {
		if p := place.FindString(line); p != "" {
			return strings.TrimSpace(strings.TrimPrefix(line, p))
		}
	}
	return "it does not say why"
}
