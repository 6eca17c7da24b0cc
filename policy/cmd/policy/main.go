// Command policy checks policy files, compares them, and shows how they apply to a request.
//
//	policy check [-engine memory|redis|sql] FILE…
//	policy diff OLD NEW
//	policy explain [-cost N] FILE [ATTRIBUTE=VALUE]…
//	policy explain [-cost N] -service URL [ATTRIBUTE=VALUE]…
//
// With -json, each command prints output for scripts. The exit status is 0 for success. It
// is 1 if a checked file is invalid, if the files differ, or if the request would be refused
// with any remaining budget. It is 2 if the arguments are invalid or a file cannot be read.
//
//	policy explain rules.yaml method=POST path=/v1/charges user=ann plan=free
//	policy explain -service http://localhost:8081/admin path=/v1/charges user=ann
//
// With -service it queries a running service, at the URL of package policy/admin's page. The service also returns
// the remaining budget and the time until a retry can succeed. -header "Name: value" adds a header field to the
// query, for example for authentication; it may be repeated. Without a service, the command explain in package
// policyredis reads budgets on Redis. check reports all errors in a file, as file:line:column, and warns about valid
// entries that are probably mistakes: see [policy.Check]. With -engine it also refuses limits impossible for budgets
// in memory, on Redis (policyredis) or in a database (sqllimit); it needs no server. A cluster, and a Tenant in
// policyredis, restrict rules further: policy.Check with the service's own engine finds these mistakes, too.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
)

// The exit statuses.
const (
	fine   = 0
	differ = 1 // the file is invalid, the files differ, or the request is refused
	misuse = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// tool is one run of the command.
type tool struct {
	out, errs io.Writer
	json      bool
	engine    string // the engine for check, or ""
	cost      int
	service   string   // the URL of a running service, or ""
	headers   []string // the query's headers
}

func run(args []string, out, errs io.Writer) int {
	t := &tool{out: out, errs: errs}
	if len(args) == 0 {
		return t.usage("")
	}
	commands := map[string]func([]string) int{"check": t.check, "diff": t.diff, "explain": t.explain}
	command, ok := commands[args[0]]
	if !ok {
		if slices.Contains([]string{"h", "help"}, strings.TrimLeft(args[0], "-")) {
			t.usage("")
			return fine
		}
		return t.usage(fmt.Sprintf("no command %q", args[0]))
	}
	flags := flag.NewFlagSet("policy "+args[0], flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.BoolVar(&t.json, "json", false, "print JSON")
	if args[0] == "check" {
		flags.Func("engine", "also check the limits against an `engine`: "+engineNames(), func(name string) error {
			if engines[name] == nil {
				return fmt.Errorf("want one of %s", engineNames())
			}
			t.engine = name
			return nil
		})
	}
	if args[0] == "explain" {
		flags.IntVar(&t.cost, "cost", 1, "the caller's cost")
		flags.StringVar(&t.service, "service", "", "the `URL` of a running service's policy/admin page")
		flags.Func("header", "a header `field` for the service, such as \"Authorization: Bearer …\"", func(h string) error {
			if !strings.Contains(h, ":") {
				return errors.New("want NAME: VALUE")
			}
			t.headers = append(t.headers, h)
			return nil
		})
	}
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return fine
	case err != nil:
		return misuse
	}
	return command(flags.Args())
}

func (t *tool) usage(wrong string) int {
	if wrong != "" {
		fmt.Fprintln(t.errs, "policy:", wrong)
	}
	fmt.Fprint(t.errs, `usage:
  policy check [-json] [-engine memory|redis|sql] FILE…
  policy diff [-json] OLD NEW
  policy explain [-json] [-cost N] FILE [ATTRIBUTE=VALUE]…
  policy explain [-json] [-cost N] [-header FIELD]… -service URL [ATTRIBUTE=VALUE]…
`)
	return misuse
}

// load reads a file. If it fails, status is the command's exit status.
func (t *tool) load(path string) (set *policy.Set, status int, err error) {
	data, err := t.read(path)
	if err != nil {
		return nil, misuse, err
	}
	parsed, err := byhand.Parse(path, data)
	if err != nil {
		return nil, differ, fmt.Errorf("%s: %w", path, err)
	}
	return parsed.(*policy.Set), fine, nil
}

// maxRead is the maximum size of a file or an answer. It is above policy.Parse's maximum.
const maxRead = 8 << 20

func (t *tool) read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRead))
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
