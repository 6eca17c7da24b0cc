// Tiers serves three plans under three limits at once: one for each user by plan, one for each route,
// and one for the whole service. A request is charged to all or to none. While traffic flows, a free
// user buys the pro plan. Then the service's limit is tightened. Spending stays spent in both cases.
// In phases of 0.6 seconds, the program prints each user's admissions and the limits that denied.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/weir-go/ratelimit"
)

const phase = 600 * time.Millisecond

// request is one request: its user and its route.
type request struct{ user, route string }

// plans holds each user's plan. Several goroutines may use it.
type plans struct {
	mu     sync.RWMutex
	byUser map[string]ratelimit.Limit
}

func (p *plans) of(user string) ratelimit.Limit {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byUser[user] // the zero Limit means the limiter's own limit
}

func (p *plans) set(user string, limit ratelimit.Limit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byUser[user] = limit
}

var (
	free       = ratelimit.TokenBucket(ratelimit.PerSecond(5), 5).Named("free")
	pro        = ratelimit.TokenBucket(ratelimit.PerSecond(50), 50).Named("pro")
	enterprise = ratelimit.Unlimited().Named("enterprise")
	perRoute   = ratelimit.SlidingLog(ratelimit.PerSecond(400)).Named("route")
	service    = ratelimit.TokenBucket(ratelimit.PerSecond(500), 200).Named("service")
	tightened  = ratelimit.TokenBucket(ratelimit.PerSecond(100), 50).Named("service")
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	plans := &plans{byUser: map[string]ratelimit.Limit{"pat": pro, "eve": enterprise}}
	users, err := ratelimit.New(free, &ratelimit.Options[string]{LimitFor: plans.of})
	if err != nil {
		return err
	}
	routes, err := ratelimit.New[string](perRoute, nil)
	if err != nil {
		return err
	}
	all, err := ratelimit.New[struct{}](service, nil)
	if err != nil {
		return err
	}
	stack, err := ratelimit.All(
		ratelimit.By(users, func(r request) (string, error) { return r.user, nil }),
		ratelimit.By(routes, func(r request) (string, error) { return r.route, nil }),
		ratelimit.Global[request](all),
	)
	if err != nil {
		return err
	}
	report("fay and fred are on the free plan", traffic(stack))
	plans.set("fay", pro)
	users.Refresh("fay")
	report("fay has bought the pro plan", traffic(stack))
	if err := all.SetLimit(tightened); err != nil {
		return err
	}
	report(fmt.Sprintf("the service is tightened from %v to %v", service, tightened), traffic(stack))
	return nil
}

// outcome has one user's results: how many requests were admitted, and how often each limit denied.
type outcome struct {
	admitted int
	denied   map[string]int
}

// traffic sends a request of each user every 4 ms for one phase.
func traffic(stack *ratelimit.Layered[request]) map[string]*outcome {
	users := map[string]*outcome{"fay": {}, "fred": {}, "pat": {}, "eve": {}}
	var wg sync.WaitGroup
	for user, got := range users {
		got.denied = map[string]int{}
		wg.Go(func() { got.send(stack, user) })
	}
	wg.Wait()
	return users
}

func (o *outcome) send(stack *ratelimit.Layered[request], user string) {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(phase); time.Now().Before(end); <-tick.C {
		d, err := stack.Take(context.Background(), request{user, "/search"}, 1)
		switch {
		case err != nil:
			o.denied[err.Error()]++
		case d.Allowed:
			o.admitted++
		default:
			o.denied[d.Limit.Name]++
		}
	}
}

func report(title string, users map[string]*outcome) {
	fmt.Printf("%s:\n", title)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, user := range slices.Sorted(maps.Keys(users)) {
		var denied []string
		for _, name := range slices.Sorted(maps.Keys(users[user].denied)) {
			denied = append(denied, fmt.Sprintf("%d by %s", users[user].denied[name], name))
		}
		fmt.Fprintf(w, "  %s\t%d admitted\tdenied: %s\n", user, users[user].admitted, strings.Join(denied, ", "))
	}
	w.Flush()
}
