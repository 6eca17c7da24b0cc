package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// worker tries mutants in a copy of the repository.
type worker struct {
	dir     string
	clean   map[string]time.Duration // how long a package's tests take without a mutant
	listed  map[string][]string      // by package: the packages with tests that depend on it
	killers *killers
}

// killers lists the tests that have killed mutants, by package. All workers share it.
type killers struct {
	mu    sync.Mutex
	tests map[string][]string
}

func (k *killers) add(pkg, test string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Contains(k.tests[pkg], test) {
		k.tests[pkg] = append(k.tests[pkg], test)
	}
}

// of returns a pattern for the package's tests, or "" if there are none yet.
func (k *killers) of(pkg string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.tests[pkg]) == 0 {
		return ""
	}
	return "^(" + strings.Join(k.tests[pkg], "|") + ")$"
}

func newWorker(repo string, killers *killers) (*worker, error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	w := &worker{dir: dir, clean: make(map[string]time.Duration), listed: make(map[string][]string), killers: killers}
	if err := w.copy(repo); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *worker) close() { os.RemoveAll(w.dir) }

// copy copies the files that git knows or would add, unless they are deleted.
func (w *worker) copy(repo string) error {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = repo
	names, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(repo, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the file is deleted, and the deletion is not committed
		}
		if err != nil {
			return err
		}
		to := filepath.Join(w.dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// try runs the tests on a mutant. First it runs the tests of the mutant's package that have killed
// others, then all the package's tests with each seed, and then the dependent packages' tests.
func (w *worker) try(ctx context.Context, m *mutant, o options) (f fate, err error) {
	packages := []string{m.pkg}
	if !o.near {
		dependants, err := w.dependants(ctx, m.pkg)
		if err != nil {
			return f, err
		}
		packages = append(packages, dependants...)
	}
	path := filepath.Join(w.dir, m.file)
	defer func() { err = errors.Join(err, os.WriteFile(path, []byte(m.plain), 0o755)) }()
	begin := time.Now()
	near := 1 // how many packages run with all seeds: the mutant's own, or all if it has no tests
	for i, pkg := range packages {
		if err := w.measure(ctx, pkg, m); err != nil {
			return f, err
		}
		if err := os.WriteFile(path, []byte(m.text), 0o755); err != nil {
			return f, err
		}
		test, out, err := w.build(ctx, pkg)
		if err != nil {
			return fate{survived: true, by: fmt.Sprintf(", as it does not compile: %v\n%s", err, out), took: time.Since(begin)}, ctx.Err()
		}
		if test == "" {
			near = len(packages)
			continue
		}
		seeds := 1
		if i < near {
			seeds = o.seeds
		}
		by, err := w.tests(ctx, pkg, test, m, seeds, i < near)
		if err := cmp.Or(ctx.Err(), err); err != nil {
			return f, err
		}
		if by == "" {
			continue
		}
		if i > 0 {
			by = pkg + " " + by
		}
		return fate{by: by, took: time.Since(begin)}, nil
	}
	return fate{survived: true, took: time.Since(begin)}, nil
}

// tests runs one package's tests on a mutant, with each seed. It returns the test that killed
// the mutant, or "" if none did. With killersFirst, tests with earlier kills run first.
func (w *worker) tests(ctx context.Context, pkg, test string, m *mutant, seeds int, killersFirst bool) (by string, err error) {
	bound := 3*w.clean[pkg] + 5*time.Second
	if first := w.killers.of(pkg); first != "" && killersFirst {
		by, err = w.play(ctx, pkg, test, 0, bound, "-test.run="+first)
	}
	for seed := 0; seed < seeds && by == "" && err == nil && ctx.Err() == nil; seed++ {
		by, err = w.play(ctx, pkg, test, seed, bound)
		if name, _, _ := strings.Cut(by, "/"); strings.HasPrefix(name, "Test") {
			w.killers.add(pkg, name)
		}
		if by != "" && seed > 0 {
			err = errors.Join(err, w.control(ctx, pkg, m, seed, by))
			by += fmt.Sprintf(", with seed %d only", seed)
		}
	}
	return by, err
}

// measure runs a package's tests once without a mutant. They must pass.
func (w *worker) measure(ctx context.Context, pkg string, m *mutant) error {
	if _, ok := w.clean[pkg]; ok {
		return nil
	}
	if err := os.WriteFile(filepath.Join(w.dir, m.file), []byte(m.plain), 0o755); err != nil {
		return err
	}
	test, out, err := w.build(ctx, pkg)
	if err != nil {
		return fmt.Errorf("%s does not compile without a mutant: %w\n%s", pkg, err, out)
	}
	var took time.Duration
	for try := range tries {
		if test == "" {
			break
		}
		begin := time.Now()
		by, err := w.once(ctx, pkg, test, 0, 20*time.Minute)
		if err := cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		if took = time.Since(begin); by == "" {
			break
		}
		if try == tries-1 {
			return fmt.Errorf("%s fails without a mutant: %s", pkg, by)
		}
	}
	w.clean[pkg] = took
	return ctx.Err()
}

// control returns an error if a test that failed with a seed fails without the mutant, too.
func (w *worker) control(ctx context.Context, pkg string, m *mutant, seed int, by string) error {
	if err := os.WriteFile(filepath.Join(w.dir, m.file), []byte(m.plain), 0o755); err != nil {
		return err
	}
	test, out, err := w.build(ctx, pkg)
	if err != nil {
		return fmt.Errorf("%s does not compile without a mutant: %w\n%s", pkg, err, out)
	}
	by, err = w.play(ctx, pkg, test, seed, 20*time.Minute, only(by)...)
	if err == nil && by != "" && ctx.Err() == nil {
		err = fmt.Errorf("%s fails without a mutant with seed %d: %s", pkg, seed, by)
	}
	return err
}

// only returns the argument to run one test alone, or nil if by is not a test's name.
func only(by string) []string {
	if name, _, _ := strings.Cut(by, "/"); strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example") {
		return []string{"-test.run=^" + name + "$"}
	}
	return nil
}

// build compiles a package's tests. If there are none, it returns "".
func (w *worker) build(ctx context.Context, pkg string) (program string, out []byte, err error) {
	program = filepath.Join(w.dir, ".test")
	os.Remove(program)
	flags := "-gcflags=github.com/weir-go/...=-dwarf=false"
	// this package takes longest to compile; without inlining and debug information, it takes little more than half the time
	if pkg == "." {
		flags = "-gcflags=github.com/weir-go/...=-l -dwarf=false"
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", flags, "-o", program, ".")
	cmd.Dir = filepath.Join(w.dir, filepath.FromSlash(pkg))
	if out, err = cmd.CombinedOutput(); err != nil {
		return "", out, err
	}
	if _, err := os.Stat(program); err != nil {
		return "", nil, nil
	}
	return program, nil, nil
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// tries is how often a test program runs at most. It runs again if its failed test passes alone.
const tries = 3

// play runs a test program with the arguments, and returns the failed test, or "". A failed test runs
// once more, alone. If it passes then, it does not count as failed, and the whole program runs again,
// because the later tests have not run. If this happens at each try, the test counts as failed.
func (w *worker) play(ctx context.Context, pkg, program string, seed int, bound time.Duration, args ...string) (by string, err error) {
	for range tries {
		if by, err = w.once(ctx, pkg, program, seed, bound, args...); by == "" || err != nil {
			return by, err
		}
		again, err := w.once(ctx, pkg, program, seed, bound, append(slices.Clone(args), only(by)...)...)
		if again != "" || err != nil {
			return by, err
		}
	}
	return by, nil
}

// once runs a test program. bound is the program's maximum time; the processes that it has started
// get a second more to close its output. Tests that depend on the machine's load are left out.
func (w *worker) once(ctx context.Context, pkg, program string, seed int, bound time.Duration, args ...string) (by string, err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"-test.failfast", "-test.timeout=0"}, args...)...)
	cmd.Dir = filepath.Join(w.dir, filepath.FromSlash(pkg))
	cmd.Env = append(os.Environ(), "RATELIMIT_TEST_SEED="+strconv.Itoa(seed), "RATELIMIT_TEST_TIMED=later")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // a server started by the program may keep its output open
	group(cmd)
	err = cmd.Run()
	end(cmd)
	var exit *exec.ExitError
	switch test := failed.FindSubmatch(out.Bytes()); {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return "", nil
	case ctx.Err() != nil:
		return "a hang", nil
	case test != nil:
		return string(test[1]), nil
	case !errors.As(err, &exit): // the program did not run
		return "", fmt.Errorf("%s: %w\n%s", pkg, err, out.Bytes())
	default:
		first, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
		return first + " " + err.Error(), nil
	}
}

// dependants returns the packages with tests that depend on pkg, the root
// module's first. It leaves out the tools, the proofs and examples/servers.
func (w *worker) dependants(ctx context.Context, pkg string) ([]string, error) {
	if list, ok := w.listed[pkg]; ok {
		return list, nil
	}
	const format = `{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{range .Deps}} {{.}}{{end}}{{range .TestImports}} {{.}}{{end}}{{range .XTestImports}} {{.}}{{end}}{{end}}`
	self, err := w.list(ctx, pkg, "{{.ImportPath}}", ".")
	if err != nil {
		return nil, err
	}
	modules := []string{"."}
	err = filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "go.mod" || strings.Contains(path, "testdata") {
			return err
		}
		module, err := filepath.Rel(w.dir, filepath.Dir(path))
		if !slices.Contains([]string{".", "internal/tools", "internal/proofs", "examples/servers"}, module) {
			modules = append(modules, module)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var list []string
	for _, module := range modules {
		out, err := w.list(ctx, module, format, "./...")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			words := strings.Fields(line)
			if len(words) == 0 || !slices.Contains(words[1:], strings.TrimSpace(self)) {
				continue
			}
			dir, err := filepath.Rel(w.dir, words[0])
			if err != nil {
				return nil, err
			}
			if dir = filepath.ToSlash(dir); dir != pkg && !strings.HasPrefix(dir, "examples/") {
				list = append(list, dir)
			}
		}
	}
	w.listed[pkg] = slices.Compact(list)
	return w.listed[pkg], nil
}

func (w *worker) list(ctx context.Context, dir, format string, packages string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-f", format, packages)
	cmd.Dir = filepath.Join(w.dir, filepath.FromSlash(dir))
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("go list in %s: %w", dir, err)
	}
	return string(out), nil
}
