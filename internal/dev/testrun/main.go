// Testrun runs all modules' tests, three modules at a time, the slowest first. It passes its arguments to each go test.
// When a module ends, it prints go test's output and a line of progress. Tests that bound a time (testsize.Alone) run when
// all others have ended. The last lines list the failed tests, and the skipped tests with the reasons. See scripts/test.
//
// If the first argument is not -all, testrun leaves out the modules in internal, except the package testing sqllimit
// and policy on PostgreSQL. It also leaves out tests calling testsize.Extra. A last line lists the omissions.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// together is how many modules run at a time: one more than a small machine's
// processors, because tests wait for servers and clocks about as long as they compute.
const together = 3

func main() {
	log.SetFlags(0)
	modules, err := find(".")
	if err != nil {
		log.Fatal(err)
	}
	r := runner{out: os.Stdout, args: os.Args[1:], skipped: make(counts)}
	if len(r.args) > 0 && r.args[0] == "-all" {
		r.args = r.args[1:]
	} else {
		r.quick = true
	}
	r.all(modules)
	if !r.passed() {
		os.Exit(1)
	}
}

// find returns the modules' folders, sorted by their tests' expected duration, the longest first. It estimates the duration
// by the files' size. The root's tests wait for no server, and take about a sixth of the time of other tests of their size.
func find(root string) ([]string, error) {
	sizes := make(map[string]int64)
	var open []string // the modules containing the folder, the innermost last
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if name := e.Name(); name == "testdata" || path != root && strings.HasPrefix(name, ".") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				sizes[path] = 0
				open = append(open, path)
			}
			return nil
		}
		for len(open) > 0 && !within(path, open[len(open)-1]) {
			open = open[:len(open)-1]
		}
		if len(open) > 0 && strings.HasSuffix(path, "_test.go") {
			info, err := e.Info()
			if err != nil {
				return err
			}
			sizes[open[len(open)-1]] += info.Size()
		}
		return nil
	})
	if size, ok := sizes[root]; ok {
		sizes[root] = size / 6
	}
	return slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	}), err
}

// within reports whether path is in the folder dir.
func within(path, dir string) bool {
	return dir == "." || strings.HasPrefix(path, dir+string(filepath.Separator))
}

// ofQuick returns a module's packages for a run without -all, or "" if it has none.
// Users' modules have no driver for PostgreSQL, so tests with a driver are in the proofs.
func ofQuick(dir string) string {
	switch {
	case dir == filepath.FromSlash("internal/proofs"):
		return "./sqltest"
	case within(dir, "internal"):
		return ""
	}
	return "./..."
}

// runner runs go test, and records the results.
type runner struct {
	out  io.Writer
	args []string

	quick bool     // whether -all is missing
	left  []string // the modules left out without -all, completely or in part

	mu      sync.Mutex // guards out and the fields below
	ended   int
	failed  []string
	skipped counts
}

func (r *runner) all(modules []string) {
	packages := make(map[string]string)
	for _, dir := range modules {
		packages[dir] = "./..."
		if r.quick {
			if packages[dir] = ofQuick(dir); packages[dir] != "./..." {
				r.left = append(r.left, dir)
			}
		}
	}
	modules = slices.DeleteFunc(slices.Clone(modules), func(dir string) bool { return packages[dir] == "" })
	later := make([]map[string][]string, len(modules))
	next := make(chan int)
	var workers sync.WaitGroup
	for range together {
		workers.Go(func() {
			for i := range next {
				later[i] = r.module(modules[i], packages[modules[i]], fmt.Sprintf("of %d", len(modules)))
			}
		})
	}
	for i := range modules {
		next <- i
	}
	close(next)
	workers.Wait()
	for i, tests := range later {
		for _, pkg := range slices.Sorted(maps.Keys(tests)) {
			r.alone(modules[i], pkg, tests[pkg])
		}
	}
	for _, name := range r.failed {
		fmt.Fprintln(r.out, "FAIL:", name)
	}
	extra := r.skipped.remove(testsize.LeftOut)
	r.skipped.print(r.out)
	if r.quick {
		fmt.Fprintf(r.out, "\nleft to .ci/run and ./scripts/test -all: %d tests, and comparisons with peers, frameworks and other databases (%s)\n", extra, strings.Join(slices.Sorted(slices.Values(r.left)), ", "))
	}
}

// module runs a module's tests. It skips the tests to run alone, and returns them by package.
func (r *runner) module(dir, packages, of string) map[string][]string {
	began := time.Now()
	out, result := r.test(dir, "later", packages)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended++
	r.keep(dir, result)
	fmt.Fprintf(r.out, "%s-- %d %s: %s %s in %v\n", out, r.ended, of, dir, result.word(), time.Since(began).Round(time.Second))
	return result.later
}

// alone runs one package's tests while no others run.
func (r *runner) alone(dir, pkg string, tests []string) {
	out, result := r.test(dir, "now", "-run", "^("+strings.Join(tests, "|")+")$", pkg)
	r.keep(dir, result)
	fmt.Fprintf(r.out, "%s-- alone: %s %s\n", out, strings.Join(tests, " "), result.word())
}

// test runs go test in a folder. The wanted flags come after the user's flags, because
// the last flag with a name counts. They come before the tests' own arguments.
func (r *runner) test(dir, timed string, wanted ...string) ([]byte, *result) {
	flags, own := r.args, []string(nil)
	if i := slices.IndexFunc(flags, func(a string) bool { return a == "-args" || a == "--args" }); i >= 0 {
		flags, own = flags[:i], flags[i:]
	}
	cmd := exec.Command("go", slices.Concat([]string{"test", "-json"}, flags, wanted, own)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), testsize.Timed+"="+timed)
	if r.quick {
		cmd.Env = append(cmd.Env, testsize.Variant+"="+testsize.Quick)
	}
	var out, errs bytes.Buffer
	cmd.Stderr = &errs
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		log.Fatal(err)
	}
	result, err := report(events, &out)
	if err != nil {
		fmt.Fprintln(&out, "testrun:", err)
		io.Copy(io.Discard, events)
	}
	if failed := cmd.Wait(); failed != nil || err != nil {
		result.failed = true
	}
	out.Write(errs.Bytes())
	return out.Bytes(), result
}

// keep adds a result. The caller holds the lock, or no other goroutine runs.
func (r *runner) keep(dir string, result *result) {
	if result.failed {
		r.failed = append(r.failed, strings.Join(append([]string{dir}, result.failures...), " "))
	}
	r.skipped.add(result.skipped)
}

func (r *runner) passed() bool { return len(r.failed) == 0 }
