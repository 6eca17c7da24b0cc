// Mutate makes small changes to the code, one at a time, and runs the
// tests. If all tests pass with a change, they leave something untested.
//
//	go -C internal/tools run ./mutate                         all mutants: an hour on two cores
//	go -C internal/tools run ./mutate -pkg lease -seeds 3     mutants of one package; survivors of one seed are tried with the next
//	go -C internal/tools run ./mutate -only 'rounded'         mutants whose names match
//	go -C internal/tools run ./mutate -list                   prints where each is, and runs nothing
//
// The mutants are in mutants.txt. The command works in copies of the repository's present files, and never in the
// checkout. The mutant's own package's tests run first, with -failfast, beginning with tests that have killed
// other mutants. If a mutant survives them with all seeds, all dependent packages' tests run, except proofs and
// examples. A failure counts only if the test fails twice. A run that takes three times as long as without a
// mutant counts as a failure, too. If a test fails with only one seed, it must pass without the mutant. The exit
// status is 1 if a mutant survives or does not compile, or if its text is not found exactly once.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

//go:embed mutants.txt
var data string

func main() {
	log.SetFlags(0)
	var o options
	pkg := flag.String("pkg", "", "the folder of the only package to change")
	only := flag.String("only", "", "a regular expression for the names of the only mutants")
	list := flag.Bool("list", false, "print where each mutant is")
	flag.StringVar(&o.dir, "dir", "../..", "the repository")
	flag.IntVar(&o.seeds, "seeds", 3, "how many seeds of random tests a mutant has to survive")
	flag.BoolVar(&o.near, "near", false, "run no tests of other packages")
	flag.IntVar(&o.together, "together", 2, "how many mutants are tried at a time, each in a copy of its own")
	flag.Parse()
	all, err := parse(data)
	if err != nil {
		log.Fatal("mutants.txt: ", err)
	}
	name, err := regexp.Compile(*only)
	if err != nil {
		log.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(m *mutant) bool { return *pkg != "" && m.pkg != *pkg || !name.MatchString(m.name) })
	if err := locate(o.dir, all); err != nil {
		log.Fatal(err)
	}
	if len(all) == 0 || o.seeds < 1 || o.together < 1 {
		log.Fatal("no mutant of that package and name, or no seeds, or none at a time: nothing would be tried")
	}
	if *list {
		for _, m := range all {
			fmt.Printf("%s: %s\n", m.file, m.name)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	survived, err := o.run(ctx, all, os.Stdout)
	if err != nil {
		log.Fatal(err)
	}
	if survived > 0 {
		os.Exit(1)
	}
}

// options has a run's flags.
type options struct {
	dir      string
	seeds    int
	near     bool
	together int
}

// fate is a mutant's result.
type fate struct {
	survived bool
	by       string // the test that killed the mutant, or why none could
	took     time.Duration
}

// run tries all unexplained mutants, and returns how many survived.
func (o options) run(ctx context.Context, all []*mutant, out io.Writer) (int, error) {
	tried := slices.DeleteFunc(slices.Clone(all), func(m *mutant) bool { return m.explained != "" })
	queue := make(chan *mutant)
	killers := &killers{tests: make(map[string][]string)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu     sync.Mutex
		first  error
		fates  = make(map[*mutant]fate)
		wg     sync.WaitGroup
		result = func(m *mutant, f fate, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				first = cmp.Or(first, err)
				cancel()
				return
			}
			fates[m] = f
			word := "killed by " + f.by
			if f.survived {
				word = "SURVIVED" + f.by
			}
			fmt.Fprintf(out, "%4d of %d  %4.0fs  %s: %s: %s\n", len(fates), len(tried), f.took.Seconds(), m.pkg, m.name, word)
		}
	)
	for range min(o.together, len(tried)) {
		wg.Go(func() {
			w, err := newWorker(o.dir, killers)
			if err != nil {
				result(nil, fate{}, err)
			}
			for m := range queue {
				if ctx.Err() == nil {
					f, err := w.try(ctx, m, o)
					result(m, f, err)
				}
			}
			if w != nil {
				w.close()
			}
		})
	}
	for _, m := range tried {
		queue <- m
	}
	close(queue)
	wg.Wait()
	if err := cmp.Or(first, ctx.Err()); err != nil {
		return 0, err
	}
	return summary(out, all, fates), nil
}

// summary prints a line for each package, and the survivors. It returns how many there are.
func summary(out io.Writer, all []*mutant, fates map[*mutant]fate) (survived int) {
	type counts struct{ all, killed, explained int }
	var order []string
	by := make(map[string]*counts)
	for _, m := range all {
		c := by[m.pkg]
		if c == nil {
			c = new(counts)
			by[m.pkg], order = c, append(order, m.pkg)
		}
		c.all++
		switch f, ok := fates[m]; {
		case !ok:
			c.explained++
		case !f.survived:
			c.killed++
		}
	}
	fmt.Fprintf(out, "\n%8s %8s %10s %9s\n", "mutants", "killed", "survived", "explained")
	for _, pkg := range order {
		c := by[pkg]
		fmt.Fprintf(out, "%8d %8d %10d %9d  %s\n", c.all, c.killed, c.all-c.killed-c.explained, c.explained, pkg)
	}
	for _, m := range all {
		if fates[m].survived {
			survived++
			fmt.Fprintf(out, "SURVIVED: %s: %s (%s)\n", m.pkg, m.name, m.file)
		}
	}
	return survived
}
