package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func Example() {
	limiter, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 3), nil)
	if err != nil {
		panic(err)
	}
	for i := range 4 {
		fmt.Println(i, limiter.Allow("user:42", 1))
	}
	// Output:
	// 0 true
	// 1 true
	// 2 true
	// 3 false
}

// These lines are the beginning of README.md, here in a handler.
func ExampleKeyed_Allow() {
	w, ip := httptest.NewRecorder(), "192.0.2.1"

	limiter := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 50), nil))

	if !limiter.Allow(ip, 1) { // an address may send 50 requests at once, and 10 more each second
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	}

	fmt.Println(w.Code, limiter.Allow(ip, 49), limiter.Allow(ip, 1))
	// Output: 200 true false
}

func ExampleKeyed_Take() {
	clock := new(ratelimittest.Clock) // leave the clock out in a program
	limiter := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog(ratelimit.PerMinute(100)),
		&ratelimit.Options[string]{Clock: clock}))

	for _, cost := range []int{60, 60, 101} {
		d, err := limiter.Take(context.Background(), "user:42", cost)
		switch {
		case errors.Is(err, ratelimit.ErrExceedsLimit):
			fmt.Println("never:", err)
		case err != nil:
			fmt.Println("cannot decide:", err)
		case d.Allowed:
			fmt.Println("yes:", d.Remaining, "left")
		default:
			fmt.Println("not yet: retry after", d.RetryAfter)
		}
	}
	// Output:
	// yes: 40 left
	// not yet: retry after 1m0s
	// never: ratelimit: cost exceeds the limit: cost 101 is above 100, the capacity of sliding-log 100/m
}

func ExampleKeyed_Wait() {
	limiter := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerSecond(100), 5), nil))
	start := time.Now()
	for range 3 {
		if err := limiter.Wait(context.Background(), "partner", 1); err != nil {
			panic(err)
		}
	}
	fmt.Println("three calls took at least 20ms:", time.Since(start) >= 20*time.Millisecond)

	hourly := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	hourly.Allow("partner", 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := hourly.Wait(ctx, "partner", 1)
	fmt.Println("a deadline that cannot be met fails at once:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// three calls took at least 20ms: true
	// a deadline that cannot be met fails at once: true
}

func ExampleKeyed_Reserve() {
	clock := new(ratelimittest.Clock)
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerMinute(1000), 1000),
		&ratelimit.Options[string]{Clock: clock}))

	r, err := limiter.Reserve(context.Background(), "team", 400, 0) // the estimate; 0: now or not at all
	if err != nil || !r.Allowed {
		return
	}
	fmt.Println(r.Remaining, "left while it runs")
	r.Settle(150) // the real cost
	d, _ := limiter.Peek(context.Background(), "team", 0)
	fmt.Println(d.Remaining, "left after that")
	// Output:
	// 600 left while it runs
	// 850 left after that
}

func ExampleKeyed_Adjust() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(100)),
		&ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))

	_ = limiter.Adjust(context.Background(), "user:42", 150) // a charge that cannot be refused
	d, _ := limiter.Peek(context.Background(), "user:42", 1)
	fmt.Println(d.Remaining, d.RetryAfter)
	_ = limiter.Adjust(context.Background(), "user:42", -80) // a grant
	d, _ = limiter.Peek(context.Background(), "user:42", 1)
	fmt.Println(d.Remaining, d.RetryAfter)
	// Output:
	// 0 1h0m0s
	// 30 0s
}

func ExampleKeyed_SetLimit() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerMinute(50), 50),
		&ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))

	limiter.Allow("user:42", 40)
	if err := limiter.SetLimit(ratelimit.TokenBucket(ratelimit.PerMinute(500), 500)); err != nil {
		panic(err)
	}
	d, _ := limiter.Peek(context.Background(), "user:42", 1)
	fmt.Println(d.Remaining)
	// Output: 460
}

func ExampleKeyed_Stats() {
	clock := new(ratelimittest.Clock)
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerMinute(1), 1),
		&ratelimit.Options[string]{Clock: clock, MaxKeys: 2}))

	for _, user := range []string{"ann", "bob", "cid"} { // ann makes room for cid
		limiter.Allow(user, 1)
	}
	fmt.Printf("%+v\n", limiter.Stats())

	clock.Advance(time.Minute) // bob and cid have regained their spending
	limiter.Sweep()
	fmt.Printf("%+v\n", limiter.Stats())
	// Output:
	// {Keys:2 Expired:0 Evicted:1 EvictedThrottled:0 Refused:0 Recalled:0 Overflowed:0 Waiting:0}
	// {Keys:0 Expired:2 Evicted:1 EvictedThrottled:0 Refused:0 Recalled:0 Overflowed:0 Waiting:0}
}

// With Remember, a client cannot make the limiter forget a key's spending by inventing other keys.
func ExampleOptions_remember() {
	for _, remember := range []int{0, 1000} {
		limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerHour(3), 3),
			&ratelimit.Options[string]{MaxKeys: 10, Remember: remember}))

		limiter.Allow("mallory", 3)
		for i := range 100 { // more keys than the table holds
			limiter.Allow(fmt.Sprint("mallory", i), 3)
		}
		stats := limiter.Stats()
		fmt.Printf("Remember %d: allowed again: %v; %d evicted, %d forgotten\n",
			remember, limiter.Allow("mallory", 1), stats.Evicted, stats.Overflowed)
	}
	// Output:
	// Remember 0: allowed again: true; 91 evicted, 0 forgotten
	// Remember 1000: allowed again: false; 91 evicted, 0 forgotten
}

func ExampleOptions_onDecision() {
	denials := map[string]int{} // guard it, if several goroutines decide
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("free"),
		&ratelimit.Options[string]{OnDecision: func(e ratelimit.Event[string]) {
			if !e.Decision.Allowed {
				denials[e.Decision.Limit.Name]++
			}
		}}))

	for range 5 {
		limiter.Allow("user:42", 1)
	}
	fmt.Println("denied under the limit free:", denials["free"])
	// Output: denied under the limit free: 3
}

func ExampleOptions_limitFor() {
	plans := map[string]ratelimit.Limit{
		"acme": ratelimit.TokenBucket(ratelimit.PerSecond(100), 500).Named("pro"),
		"spam": ratelimit.Blocked(),
	}
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(5), 10).Named("free"),
		&ratelimit.Options[string]{LimitFor: func(tenant string) ratelimit.Limit { return plans[tenant] }}))

	for _, tenant := range []string{"acme", "spam", "someone"} {
		d, err := limiter.Take(context.Background(), tenant, 1)
		fmt.Println(tenant, d.Allowed, d.Limit, errors.Is(err, ratelimit.ErrExceedsLimit))
	}
	// Output:
	// acme true token-bucket 100/s burst 500 false
	// spam false blocked true
	// someone true token-bucket 5/s burst 10 false
}

func ExampleAll() {
	type request struct{ User, Route string }
	clock := new(ratelimittest.Clock)
	users := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(10), 2).Named("user"),
		&ratelimit.Options[string]{Clock: clock}))
	routes := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("route"),
		&ratelimit.Options[string]{Clock: clock}))
	limiter, err := ratelimit.All(
		ratelimit.By(users, func(r request) (string, error) { return r.User, nil }),
		ratelimit.By(routes, func(r request) (string, error) { return r.Route, nil }),
	)
	if err != nil {
		panic(err)
	}
	for _, user := range []string{"ann", "ann", "ann", "bob", "bob"} {
		d, _ := limiter.Take(context.Background(), request{user, "/search"}, 1)
		fmt.Println(user, d.Allowed, d.Limit.Name, d.RetryAfter)
	}
	// Output:
	// ann true user 0s
	// ann true user 0s
	// ann false user 100ms
	// bob true route 0s
	// bob false route 1m0s
}

func ExampleLayer_cost() {
	type prompt struct{ Team string }
	team := func(p prompt) (string, error) { return p.Team, nil }
	clock := new(ratelimittest.Clock)
	requests := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(3)),
		&ratelimit.Options[string]{Clock: clock}))
	tokens := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(1000)),
		&ratelimit.Options[string]{Clock: clock}))
	count := ratelimit.By(requests, team)
	count.Cost = func(prompt) int { return 1 }
	limiter, err := ratelimit.All(count, ratelimit.By(tokens, team))
	if err != nil {
		panic(err)
	}
	fmt.Println(limiter.Allow(prompt{"search"}, 700))
	r, _ := requests.Peek(context.Background(), "search", 0)
	t, _ := tokens.Peek(context.Background(), "search", 0)
	fmt.Println(r.Remaining, "requests and", t.Remaining, "tokens are left")
	// Output:
	// true
	// 2 requests and 300 tokens are left
}

func ExampleMap() {
	type request struct{ Tenant string }
	limiter := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), nil))
	byTenant := ratelimit.Map(limiter, func(r request) (string, error) { return r.Tenant, nil })
	fmt.Println(byTenant.Allow(request{"acme"}, 1), byTenant.Allow(request{"acme"}, 1))
	// Output: true false
}

func ExampleParseLimit() {
	for _, text := range []string{"token-bucket 100/s burst 200", "sliding-counter 7/11s", "fixed-window 5000/fortnight"} {
		limit, err := ratelimit.ParseLimit(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(limit.Algorithm, limit.Capacity(), limit)
	}
	// Output:
	// token-bucket 200 token-bucket 100/s burst 200
	// sliding-counter 7 sliding-counter 7/11s
	// ratelimit: invalid limit: "fixed-window 5000/fortnight": rate "5000/fortnight": span "fortnight" is not s, m, h, d or a duration such as 11s
}

func ExampleLimit_UnmarshalText() {
	var config struct{ Free, Pro ratelimit.Limit }
	err := json.Unmarshal([]byte(`{"free": "sliding-log 100/m", "pro": "token-bucket 50/s burst 500"}`), &config)
	fmt.Println(config.Free.Rate.Units, config.Pro.Burst, err)
	// Output: 100 500 <nil>
}

func ExampleTakeUpTo() {
	ctx := context.Background()
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerMinute(600), 1000),
		&ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))

	for rows := 2500; rows > 0; { // an import that can be done in parts
		n, d, err := ratelimit.TakeUpTo(ctx, limiter, "import", rows)
		if err != nil {
			panic(err)
		}
		if n == 0 {
			fmt.Println("rows left:", rows, "next one in", d.RetryAfter)
			break
		}
		fmt.Println("rows written:", n)
		rows -= n
	}
	// Output:
	// rows written: 1000
	// rows left: 1500 next one in 100ms
}

func ExampleKeyed_Saved() {
	limit := ratelimit.FixedWindow(ratelimit.PerHour(100))
	limiter := ratelimit.Must(ratelimit.New[string](limit, nil))
	limiter.Allow("user:42", 60)

	file := map[string]ratelimit.Saved{} // where the program keeps it while it is not running
	savedAt := time.Now()
	for key, saved := range limiter.Saved() {
		file[key] = saved
	}

	next := ratelimit.Must(ratelimit.New[string](limit, nil)) // in the next program
	if err := next.Restore(maps.All(file), time.Since(savedAt)); err != nil {
		fmt.Println("not all could be restored:", err)
	}
	d, _ := next.Peek(context.Background(), "user:42", 1)
	fmt.Println(d.Remaining)
	// Output: 40
}

// A full table does not forget keys: it denies new keys until an old one is fresh.
func ExampleOptions_fullTable() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(1)), &ratelimit.Options[string]{
		MaxKeys: 2,
		OnFull:  ratelimit.RefuseNew,
	}))
	for _, phone := range []string{"+1", "+2", "+3"} {
		_, err := limiter.Take(context.Background(), phone, 1)
		fmt.Println(phone, err)
	}
	fmt.Println(limiter.Stats().Keys, "keys")
	// Output:
	// +1 <nil>
	// +2 <nil>
	// +3 ratelimit: key table full: 2 keys
	// 2 keys
}

// This work's cost is known only afterwards. If it can be estimated, the
// estimate is reserved. Otherwise the cost is charged when the work is done.
func ExampleSingle_Adjust() {
	ctx := context.Background()
	budget := ratelimit.Must(ratelimit.NewSingle(ratelimit.FixedWindow(ratelimit.PerHour(100)), nil))
	r, _ := budget.Reserve(ctx, 50, 0) // now or not at all
	fmt.Println(r.Allowed, r.Settle(20))
	fmt.Println(budget.Adjust(context.Background(), 70)) // the charge cannot be refused now
	d, _ := budget.Take(ctx, 20)
	fmt.Println(d.Allowed, d.Remaining)
	budget.Reset(context.Background())
	d, _ = budget.Take(ctx, 20)
	fmt.Println(d.Allowed, d.Remaining)
	// Output:
	// true <nil>
	// <nil>
	// false 10
	// true 80
}

// reserving adds a Reserve to a limiter with only Allow and Take, so that Map
// can put it behind a key function. This Reserve can neither book nor settle.
type reserving struct{ ratelimit.Limiter[string] }

func (l reserving) Reserve(ctx context.Context, key string, cost int, _ time.Duration) (*ratelimit.Reservation, error) {
	d, err := l.Take(ctx, key, cost)
	return ratelimit.NewReservation(d, nil), err
}

func ExampleMap_limiter() {
	var plain ratelimit.Limiter[string] = ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	byUser := ratelimit.Map(reserving{plain}, func(user int) (string, error) { return fmt.Sprint("user:", user), nil })
	fmt.Println(byUser.Allow(42, 1), byUser.Allow(42, 1), byUser.Allow(43, 1))
	// Output: true false true
}

func ExampleLayer_shadow() {
	type request struct{ User string }
	user := func(r request) (string, error) { return r.User, nil }
	clock := new(ratelimittest.Clock)
	enforced := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(100)),
		&ratelimit.Options[string]{Clock: clock}))
	stricter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(2)), &ratelimit.Options[string]{
		Clock: clock,
		OnDecision: func(e ratelimit.Event[string]) {
			fmt.Println("the stricter limit allows it:", e.Decision.Allowed)
		},
	}))
	tried := ratelimit.By(stricter, user)
	tried.Shadow = true
	limiter, err := ratelimit.All(ratelimit.By(enforced, user), tried)
	if err != nil {
		panic(err)
	}
	for range 3 {
		fmt.Println("allowed:", limiter.Allow(request{"ann"}, 1))
	}
	// Output:
	// the stricter limit allows it: true
	// allowed: true
	// the stricter limit allows it: true
	// allowed: true
	// the stricter limit allows it: false
	// allowed: true
}

func ExampleLayer_limit() {
	type request struct{ User, Plan string }
	plans := map[string]ratelimit.Limit{
		"pro": ratelimit.FixedWindow(ratelimit.PerHour(1000)).Named("pro"),
	}
	free := ratelimit.FixedWindow(ratelimit.PerHour(10)).Named("free")
	users := ratelimit.Must(ratelimit.New(free, &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
	byPlan := ratelimit.By(users, func(r request) (string, error) { return r.User, nil })
	byPlan.Limit = func(r request) ratelimit.Limit { return plans[r.Plan] } // zero means the limiter's own limit, the free plan's
	limiter, err := ratelimit.All(byPlan)
	if err != nil {
		panic(err)
	}
	for _, r := range []request{{"ann", "trial"}, {"ann", "pro"}} { // ann upgrades
		d, _ := limiter.Take(context.Background(), r, 8)
		fmt.Println(d.Allowed, d.Limit.Name, d.Remaining)
	}
	// Output:
	// true free 2
	// true pro 984
}

func ExampleAllOf() {
	type request struct {
		User   string
		Labels []int // each label has a limit
	}
	clock := new(ratelimittest.Clock)
	layers := make([]ratelimit.Layer[request], 1000)
	for i := range layers {
		label := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(i+1)).Named(fmt.Sprint("label-", i)),
			&ratelimit.Options[string]{Clock: clock}))
		layers[i] = ratelimit.By(label, func(r request) (string, error) { return r.User, nil })
	}
	limiter, err := ratelimit.AllOf(
		func(r request, which []int) []int { return append(which, r.Labels...) }, layers...)
	if err != nil {
		panic(err)
	}
	for range 4 {
		d, _ := limiter.Take(context.Background(), request{"ann", []int{2, 7, 500}}, 1)
		fmt.Println(d.Allowed, d.Limit.Name, d.Remaining)
	}
	// Output:
	// true label-2 2
	// true label-2 1
	// true label-2 0
	// false label-2 0
}

func ExampleLayered_Peek() {
	clock := new(ratelimittest.Clock)
	users := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(10), 5),
		&ratelimit.Options[string]{Clock: clock}))
	limiter, err := ratelimit.All(ratelimit.By(users, func(user string) (string, error) { return user, nil }))
	if err != nil {
		panic(err)
	}
	limiter.Allow("ann", 4)
	for range 2 { // Peek changes nothing
		d, _ := limiter.Peek(context.Background(), "ann", 2)
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
	}
	// Output:
	// false 1 100ms
	// false 1 100ms
}

// An LLM request's reservation charges a team's limits on tokens and on dollars. Each limit settles at its own figure.
func ExampleLayer_actual() {
	type call struct {
		team           string
		tokens, micros int // the answer's figures, filled in by the handler
	}
	team := func(c *call) (string, error) { return c.team, nil }
	tokens := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(10_000), 10_000), nil))
	dollars := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerDay(5_000_000)), nil)) // millionths of a dollar
	spent := ratelimit.By(dollars, team)
	spent.Cost = func(*call) int { return 80_000 } // the estimate
	spent.Actual = func(c *call) int { return c.micros }
	budget := ratelimit.Must(ratelimit.All(ratelimit.By(tokens, team), spent))

	c := &call{team: "search"}
	r, err := budget.Reserve(context.Background(), c, 4_000, 0)
	if err != nil || !r.Allowed {
		return
	}
	c.tokens, c.micros = 900, 13_500
	r.Settle(c.tokens)
	left, err := dollars.Peek(context.Background(), "search", 0)
	fmt.Println(left.Remaining, err)
	// Output: 4986500 <nil>
}

// A page for customers shows what remains of this month's, this minute's
// and the exports' budgets. Only some customers have a limit on exports.
func ExampleLayered_PeekEach() {
	type customer struct {
		name    string
		exports bool
	}
	name := func(c customer) (string, error) { return c.name, nil }
	limiter := func(limit ratelimit.Limit) *ratelimit.Keyed[string] {
		return ratelimit.Must(ratelimit.New[string](limit, nil))
	}
	quota := ratelimit.Must(ratelimit.All(
		ratelimit.By(limiter(ratelimit.Calendar(1000, ratelimit.Month("UTC", 1)).Named("month")), name),
		ratelimit.By(limiter(ratelimit.FixedWindow(ratelimit.PerMinute(60)).Named("minute")), name),
		ratelimit.By(limiter(ratelimit.FixedWindow(ratelimit.PerDay(5)).Named("exports")), func(c customer) (string, error) {
			if !c.exports {
				return "", ratelimit.SkipLayer
			}
			return c.name, nil
		}),
	))
	ann := customer{name: "ann"}
	quota.Allow(ann, 20)

	each, err := quota.PeekEach(context.Background(), ann, 1)
	if err != nil {
		return
	}
	for _, d := range each {
		if d.Limit.Algorithm == 0 {
			continue // the layer does not apply to ann
		}
		fmt.Printf("%s: %d of %d\n", d.Limit.Name, d.Remaining, d.Limit.Capacity())
	}
	// Output:
	// month: 980 of 1000
	// minute: 40 of 60
}

func ExampleKeyed_Peek() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(5)),
		&ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
	limiter.Allow("ann", 3)
	d, _ := limiter.Peek(context.Background(), "ann", 1)
	fmt.Println(d.Allowed, d.Remaining, d.ResetAfter)
	// Output: true 2 1m0s
}

// This plan has 1000 calls a month. The customer's month begins on the 15th, in the customer's time zone.
func ExampleCalendar() {
	var clock ratelimittest.Clock // in production leave Options.Clock out
	clock.SetWall(time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC))

	quota := ratelimit.Calendar(1000, ratelimit.Month("Europe/Berlin", 15))
	calls, err := ratelimit.New(quota, &ratelimit.Options[string]{Clock: &clock})
	if err != nil {
		panic(err)
	}
	d, _ := calls.Take(context.Background(), "acme", 1000)
	fmt.Println(d.Limit, "leaves", d.Remaining)

	d, _ = calls.Take(context.Background(), "acme", 1)
	_, ends := quota.Period.Window(clock.Wall())
	fmt.Println("more in", d.RetryAfter, "on", ends.Format("January 2 15:04 MST"))

	clock.Advance(d.RetryAfter)
	fmt.Println(calls.Allow("acme", 1))
	// Output:
	// calendar 1000/month Europe/Berlin from 15 leaves 0
	// more in 107h0m0s on March 15 00:00 CET
	// true
}

// The contract allows 1,000 calls an hour, and 60 a minute, by the clock.
func ExampleHour() {
	at := time.Date(2026, time.March, 2, 9, 59, 30, 0, time.UTC)
	_, next := ratelimit.Hour("UTC").Window(at)
	fmt.Println(ratelimit.Calendar(1000, ratelimit.Hour("UTC")), "begins again at", next.Format(time.TimeOnly))
	_, next = ratelimit.Minute("UTC").Window(at)
	fmt.Println(ratelimit.Calendar(60, ratelimit.Minute("UTC")), "begins again at", next.Format(time.TimeOnly))
	// Output:
	// calendar 1000/hour UTC begins again at 10:00:00
	// calendar 60/minute UTC begins again at 10:00:00
}

// A request charges both the service's limit and the user's limit, or neither.
func ExampleGlobal() {
	service := ratelimit.Must(ratelimit.New[struct{}](ratelimit.FixedWindow(ratelimit.PerHour(3)), nil))
	users := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(2)), nil))
	limiter := ratelimit.Must(ratelimit.All(
		ratelimit.Global[string](service),
		ratelimit.By(users, func(user string) (string, error) { return user, nil }),
	))
	for _, user := range []string{"ann", "ann", "ann", "bob", "bob"} {
		fmt.Println(user, limiter.Allow(user, 1))
	}
	fmt.Println("the service has room for one more:", service.Allow(struct{}{}, 1))
	// Output:
	// ann true
	// ann true
	// ann false
	// bob true
	// bob false
	// the service has room for one more: false
}

// Callers who leave do not delay the others. At most 1,000 wait.
func ExampleOptions_maxWaiting() {
	ctx := context.Background()
	jobs := ratelimit.Must(ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(20), 1),
		&ratelimit.Options[struct{}]{MaxWaiting: 1000}))
	if err := jobs.Wait(ctx, 1); err != nil {
		fmt.Println(err) // the caller has left, or too many wait
		return
	}
	fmt.Println(jobs.Stats().Waiting, "wait")
	// Output:
	// 0 wait
}

func ExampleConcurrent() {
	// A user may have 2 streams open. If a process dies, its streams count for at most a minute more.
	streams := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(2, time.Minute), nil))
	ctx := context.Background()
	first, _ := streams.Reserve(ctx, "user:42", 1, 0)
	second, _ := streams.Reserve(ctx, "user:42", 1, 0)
	third, _ := streams.Reserve(ctx, "user:42", 1, 0)
	fmt.Println(first.Allowed, second.Allowed, third.Allowed)

	if err := first.Extend(ctx); errors.Is(err, ratelimit.ErrLost) { // every 20 seconds, while the stream is open
		fmt.Println("the units have lapsed: end the stream")
	}
	_ = first.Settle(1) // when it has ended
	third, _ = streams.Reserve(ctx, "user:42", 1, 0)
	fmt.Println(third.Allowed)
	// Output:
	// true true false
	// true
}
