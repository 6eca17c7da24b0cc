// Command explain says what the rules of a policy file say about a request, with what is left on Redis and when to
// retry. It charges nothing.
//
//	explain [-json] [-cost N] [-redis URL] [-prefix PREFIX] FILE [ATTRIBUTE=VALUE]…
//
// The exit status is 0; 1 if the request would be refused whatever is left; 2 if the call is wrong, the file is invalid
// or Redis does not answer. It is the command explain of policy's command, with an engine.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("explain", flag.ContinueOnError)
	flags.SetOutput(errs)
	asJSON := flags.Bool("json", false, "print JSON")
	cost := flags.Int("cost", 1, "the caller's cost")
	address := flags.String("redis", "redis://localhost:6379", "the `URL` of Redis")
	prefix := flags.String("prefix", "", "the Prefix of policyredis.Options")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ex, err := explain(flags.Args(), *cost, *address, *prefix)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	if *asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		_ = enc.Encode(ex)
	} else {
		fmt.Fprint(out, ex)
	}
	if errors.Is(ex.Err, ratelimit.ErrUnavailable) {
		return 2
	}
	if ex.Err != nil {
		return 1
	}
	return 0
}

func explain(args []string, cost int, address, prefix string) (ex policy.Explanation, err error) {
	if len(args) == 0 {
		return ex, errors.New("explain needs a file")
	}
	request := policy.Attributes{}
	for _, arg := range args[1:] {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return ex, fmt.Errorf("%q is not ATTRIBUTE=VALUE", arg)
		}
		request[name] = value
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return ex, err
	}
	set, err := policy.Parse(data)
	if err != nil {
		return ex, fmt.Errorf("%s: %w", args[0], err)
	}
	opts, err := redis.ParseURL(address)
	if err != nil {
		return ex, errors.New("-redis: not a URL such as redis://localhost:6379") // it may hold a password
	}
	client := redis.NewClient(opts)
	defer client.Close()
	p, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Prefix: prefix, Timeout: 5 * time.Second})})
	if err != nil {
		return ex, err
	}
	return p.Explain(request, cost)
}
