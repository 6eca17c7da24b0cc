// Command explain prints how a policy file's rules answer a request, with the remaining
// budgets on Redis and the time until a retry can succeed. It charges nothing.
//
//	explain [-json] [-cost N] [-redis URL] [-cluster] [-prefix PREFIX] [-tenant ATTRIBUTE] FILE [ATTRIBUTE=VALUE]…
//
// Set -prefix and -tenant to the Prefix and the Tenant in the service's [policyredis.Options]. They are part
// of the budgets' names on Redis: with other values, the command looks up other, unspent budgets. It does
// not find the budgets if the service sets Slot, nor budgets on a Ring. A service's leases count as spent.
//
// The exit status is 0; 1 if the request would be refused with any remaining budget; 2 if the call is wrong, the
// file is invalid or Redis does not answer. This is the command explain of policy's command, with an engine.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
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
	cluster := flags.Bool("cluster", false, "Redis is a cluster, and the URL names one of its nodes")
	opts := &policyredis.Options{Timeout: 5 * time.Second}
	flags.StringVar(&opts.Prefix, "prefix", "", "the Prefix of policyredis.Options")
	flags.StringVar(&opts.Tenant, "tenant", "", "the Tenant of policyredis.Options")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	ex, err := explain(flags.Args(), *cost, *address, *cluster, opts)
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
	unanswered := func(e policy.Explained) bool { return e.Limit.Algorithm != 0 && e.Decision == nil }
	if errors.Is(ex.Err, ratelimit.ErrUnavailable) || slices.ContainsFunc(ex.Rules, unanswered) {
		return 2
	}
	if ex.Err != nil {
		return 1
	}
	return 0
}

func explain(args []string, cost int, address string, cluster bool, opts *policyredis.Options) (ex policy.Explanation, err error) {
	if len(args) == 0 {
		return ex, errors.New("explain needs a file")
	}
	request := policy.Attributes{}
	for _, arg := range args[1:] {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return ex, fmt.Errorf("%q is not ATTRIBUTE=VALUE", arg)
		}
		if _, twice := request[name]; twice {
			return ex, fmt.Errorf("attribute %s is given twice", name)
		}
		request[name] = value
	}
	set, err := policy.File(args[0]).Load(context.Background())
	if err != nil {
		return ex, err
	}
	client, err := connect(address, cluster)
	if err != nil {
		return ex, errors.New("-redis: not a URL such as redis://localhost:6379") // the URL may hold a password
	}
	defer client.Close()
	p, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, opts)})
	if err != nil {
		return ex, err
	}
	return p.Explain(request, cost)
}

func connect(address string, cluster bool) (redis.UniversalClient, error) {
	if cluster {
		opts, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, err
		}
		return redis.NewClusterClient(opts), nil
	}
	opts, err := redis.ParseURL(address)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(opts), nil
}
