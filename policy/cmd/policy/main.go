// Command policy checks policy files, compares them, and explains what they say about a
// request.
//
//	policy check FILE…
//	policy diff OLD NEW
//	policy explain [-cost N] FILE [ATTRIBUTE=VALUE]…
//
// Each takes -json for output that scripts read. The exit status is 0 if all is well; 1 if a
// file is invalid, the files differ, or the request would be refused whatever is left; 2 if the
// call is wrong or a file cannot be read.
//
//	policy explain rules.yaml method=POST path=/v1/charges user=ann plan=free
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/weir-go/ratelimit/policy"
)

// The exit statuses.
const (
	fine   = 0
	differ = 1 // invalid, different, refused
	misuse = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// tool is one run of the command.
type tool struct {
	out, errs io.Writer
	json      bool
	cost      int
}

func run(args []string, out, errs io.Writer) int {
	t := &tool{out: out, errs: errs}
	if len(args) == 0 {
		return t.usage("")
	}
	commands := map[string]func([]string) int{"check": t.check, "diff": t.diff, "explain": t.explain}
	command, ok := commands[args[0]]
	if !ok {
		if args[0] == "help" || strings.HasPrefix(strings.TrimLeft(args[0], "-"), "h") {
			t.usage("")
			return fine
		}
		return t.usage(fmt.Sprintf("no command %q", args[0]))
	}
	flags := flag.NewFlagSet("policy "+args[0], flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.BoolVar(&t.json, "json", false, "print JSON")
	if args[0] == "explain" {
		flags.IntVar(&t.cost, "cost", 1, "the caller's cost")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return misuse
	}
	return command(flags.Args())
}

func (t *tool) usage(wrong string) int {
	if wrong != "" {
		fmt.Fprintln(t.errs, "policy:", wrong)
	}
	fmt.Fprint(t.errs, `usage:
  policy check [-json] FILE…
  policy diff [-json] OLD NEW
  policy explain [-json] [-cost N] FILE [ATTRIBUTE=VALUE]…
`)
	return misuse
}

// load reads a file. If it cannot, status says how the command ends.
func (t *tool) load(path string) (set *policy.Set, status int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, misuse, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, policy.MaxSize+1))
	if err != nil {
		return nil, misuse, err
	}
	if set, err = policy.Parse(data); err != nil {
		return nil, differ, fmt.Errorf("%s: %w", path, err)
	}
	return set, fine, nil
}

// fail reports an error that ends the command.
func (t *tool) fail(status int, err error) int {
	fmt.Fprintln(t.errs, err)
	return status
}

// print writes JSON.
func (t *tool) print(v any) {
	enc := json.NewEncoder(t.out)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v)
}
