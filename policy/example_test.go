package policy_test

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func Example() {
	set, err := policy.Parse([]byte(`
rules:
- name: api
  key: user
  limit: fixed-window 2/h
  plans: {pro: fixed-window 1000/h}
- name: search
  match: {route: /search/}
  key: user
  limit: fixed-window 1/m
`))
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, path := range []string{"/search/a", "/search/b", "/other"} {
		d, err := policies.Take(context.Background(), policy.Attributes{"user": "ann", "path": path}, 1)
		fmt.Println(path, d.Allowed, d.Limit.Name, err)
	}
	// Output:
	// /search/a true search <nil>
	// /search/b false search <nil>
	// /other true api <nil>
}

func ExampleFollow() {
	before, err := os.Getwd()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.Chdir(before) }()
	if err := os.Chdir("../examples/servers/gateway"); err != nil { // a folder with a rules.yaml
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	file := policy.File("rules.yaml")
	set, err := file.Load(ctx) // a service without rules should not start
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, nil)
	if err != nil {
		log.Fatal(err)
	}
	go policy.Follow(ctx, policies, file)

	fmt.Println(policies.Stats().Rules, "rules")
	// Output: 3 rules
}

// userOf returns the authenticated user.
func userOf(r *http.Request) string {
	user, _, _ := r.BasicAuth()
	return user
}

// The mux is inside the limiter, so it has not routed the request yet.
func ExampleHTTP_route() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /charges/{id}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /search", func(http.ResponseWriter, *http.Request) {})
	set, err := policy.Parse([]byte("rules:\n- {name: each-route, key: route, limit: fixed-window 1/h}"))
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, nil)
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.New(ratelimit.Map(policies, func(r *http.Request) (policy.Request, error) {
		_, route := mux.Handler(r) // the pattern by which mux will serve r
		return policy.HTTP(r, policy.Attributes{"user": userOf(r), "route": cmp.Or(route, "none")}), nil
	}), nil)
	if err != nil {
		log.Fatal(err)
	}
	handler := limit.Wrap(mux)

	for _, path := range []string{"/charges/1", "/charges/2", "/search"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /charges/1 200
	// /charges/2 429
	// /search 200
}

func ExamplePolicies_Explain() {
	text, err := os.ReadFile("../examples/servers/gateway/rules.yaml")
	if err != nil {
		log.Fatal(err)
	}
	set, err := policy.Parse(text)
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, nil)
	if err != nil {
		log.Fatal(err)
	}
	e, err := policies.Explain(policy.Attributes{"user": "ann", "plan": "pro", "path": "/"}, 1)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range e.Rules {
		fmt.Println(r.Rule, r.Limit, r.Decision.Remaining)
	}
	// Output:
	// user token-bucket 100/s burst 200 200
	// trial token-bucket 10/s burst 10 10
}

// A test of rules advances the clock itself.
func ExampleMemory() {
	set, err := policy.Parse([]byte("rules: [{name: exports, key: user, limit: fixed-window 1/d}]"))
	if err != nil {
		log.Fatal(err)
	}
	clock := new(ratelimittest.Clock)
	policies, err := policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{MaxKeys: 1_000_000, Clock: clock})})
	if err != nil {
		log.Fatal(err)
	}
	ann := policy.Attributes{"user": "ann"}
	fmt.Println(policies.Allow(ann, 1), policies.Allow(ann, 1))
	clock.Advance(24 * time.Hour)
	fmt.Println(policies.Allow(ann, 1))
	// Output:
	// true false
	// true
}

// A program may make rules itself, or read them from a store without a Source.
func ExamplePolicies_Update() {
	limit := func(n int) *policy.Set {
		return &policy.Set{Rules: []policy.Rule{{Name: "api", Key: []string{"user"}, Limit: ratelimit.FixedWindow(ratelimit.PerHour(n))}}}
	}
	policies, err := policy.New(limit(2), nil)
	if err != nil {
		log.Fatal(err)
	}
	ann := policy.Attributes{"user": "ann"}
	policies.Allow(ann, 2)
	if err := policies.Update(limit(5)); err != nil { // an invalid set changes nothing
		log.Fatal(err)
	}
	fmt.Println(policies.Allow(ann, 3), policies.Allow(ann, 1)) // 2 of 5 were spent before the update
	// Output: true false
}

// A customer is notified at 80 % of a quota, and again at its end.
func ExampleOptions_onThreshold() {
	set, err := policy.Parse([]byte(`rules: [{name: calls, key: customer, limit: calendar 1000/month UTC, notify: [80%, 100%]}]`))
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, &policy.Options{OnThreshold: func(t policy.Threshold) {
		fmt.Printf("%s has used %d %% of %s, %d are left\n", t.Key, t.Percent, t.Rule, t.Decision.Remaining)
	}})
	if err != nil {
		log.Fatal(err)
	}
	for range 1100 {
		policies.Allow(policy.Attributes{"customer": "acme"}, 1)
	}
	// Output:
	// acme has used 80 % of calls, 200 are left
	// acme has used 100 % of calls, 0 are left
}

// Rules' budgets in memory can be saved in one run of a program and restored in the next.
func ExamplePolicies_Saved() {
	set := ratelimit.Must(policy.Parse([]byte("rules: [{name: quota, key: user, limit: fixed-window 1000/720h}]")))
	policies := ratelimit.Must(policy.New(set, nil))
	policies.Allow(policy.Attributes{"user": "ann"}, 400)

	type kept struct { // for example, as a line of a file
		Subject policy.Subject
		Saved   ratelimit.Saved
	}
	var file []kept
	savedAt := time.Now()
	for subject, saved := range policies.Saved() {
		file = append(file, kept{subject, saved})
	}

	next := ratelimit.Must(policy.New(set, nil)) // in the next run
	err := next.Restore(func(yield func(policy.Subject, ratelimit.Saved) bool) {
		for _, each := range file {
			if !yield(each.Subject, each.Saved) {
				return
			}
		}
	}, time.Since(savedAt))
	if err != nil {
		fmt.Println("not all could be restored:", err)
	}
	d, _ := next.Peek(context.Background(), policy.Subject{Rule: "quota", Key: []string{"ann"}}, 1)
	fmt.Println(d.Remaining)
	// Output: 600
}
