// Package crossings plays a fleet's random traffic. A rule sends notices when shares of
// its limit are spent, and the package compares them with the notices of a model. The
// model adds up the settled costs. Packages policy and policyredis use it in tests.
package crossings

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// Process is one process of the fleet. Its rule has a window, and limits of
// 100 units for the plan "" and 300 for "pro". It sends notices at the Shares.
type Process struct {
	Take    func(user, plan string, cost int) (allowed bool)
	Reserve func(user, plan string, cost int) (settle func(actual int), allowed bool)
	Adjust  func(user, plan string, delta int)
	Reset   func(user string)
}

// Rules are all rules of a process. The rule named "quota" sends the notices.
type Rules[R any] interface {
	ratelimit.Reserver[R]
	ratelimit.Adjuster[R]
	ratelimit.Resetter[R]
}

// ProcessOf returns a process that sends requests, and changes the budgets of subjects.
func ProcessOf[R any](t *testing.T, p Rules[R], request, subject func(user, plan string) R) Process {
	return Process{
		Take: func(user, plan string, cost int) bool {
			d, err := p.Take(t.Context(), request(user, plan), cost)
			require.NoError(t, err)
			return d.Allowed
		},
		Reserve: func(user, plan string, cost int) (func(int), bool) {
			res, err := p.Reserve(t.Context(), request(user, plan), cost, 0)
			require.NoError(t, err)
			return func(actual int) { require.NoError(t, res.Settle(actual)) }, res.Allowed
		},
		Adjust: func(user, plan string, delta int) {
			require.NoError(t, p.Adjust(t.Context(), subject(user, plan), delta))
		},
		Reset: func(user string) { require.NoError(t, p.Reset(t.Context(), subject(user, ""))) },
	}
}

// The rule sends a notice at each of the Shares, in percent.
var Shares = []int{50, 80, 100}

// Fleet is a fleet of processes, with its clock.
type Fleet struct {
	Processes []Process
	Advance   func() // moves the clock forward
	Window    func() int
	Notices   func() []string // since the last call: "process user percent"
	Stored    bool            // whether a denial leaves the key under its former limit, as in a store
}

// key is a user in the model.
type key struct {
	window  int
	settled int                  // this window's settled units
	open    int                  // the estimates of this window's open reservations
	plan    string               // the plan of the last decision
	charged string               // the plan of the last charge
	made    int                  // resets
	denials map[int]map[int]bool // for each process and capacity, whether the last notice of 100 % was for a denial
	noticed map[int][]int        // for each process, the capacities for which it sent a notice of 100 %
}

type reservation struct {
	user         int
	process      int
	cost         int
	window, made int
	settle       func(int)
}

func capacityOf(plan string) int {
	if plan == "pro" {
		return 300
	}
	return 100
}

// Play plays calls for a number of users, and counts the notices.
func Play(t *testing.T, seed uint64, f Fleet, users, calls int) (notices int) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 74))
	keys := make([]key, users)
	var open []reservation
	for call := range calls {
		f.Advance()
		u, process := random.IntN(users), random.IntN(len(f.Processes))
		p, k, name := &f.Processes[process], &keys[u], fmt.Sprint("user", u)
		if w := f.Window(); w != k.window {
			*k = key{window: w, plan: k.plan, charged: k.charged, made: k.made}
		}
		n := random.IntN(20)
		if n < 13 && k.settled+k.open <= 100 && random.IntN(10) == 0 { // the limit of the last decision is still in force
			k.plan = []string{"", "pro"}[random.IntN(2)]
		}
		capacity := capacityOf(k.plan)
		var want []string
		what := ""
		change := func(before, after int, denied bool) {
			want = k.change(process, name, before, after, capacity, denied)
		}
		switch {
		case n < 8:
			cost := 1 + random.IntN(12)
			fits := k.settled+k.open+cost <= capacity
			what = fmt.Sprintf("take %d under %d", cost, capacity)
			if p.Take(name, k.plan, cost) != fits {
				t.Fatalf("seed %d, call %d: %s of %s: want allowed %v", seed, call, what, name, fits)
			}
			if change(k.settled, k.settled+cost, !fits); fits {
				k.settled += cost
				k.charged = k.plan
			}
		case n < 13:
			cost := 1 + random.IntN(capacity/2)
			fits := k.settled+k.open+cost <= capacity
			what = fmt.Sprintf("reserve %d under %d", cost, capacity)
			settle, allowed := p.Reserve(name, k.plan, cost)
			if allowed != fits {
				t.Fatalf("seed %d, call %d: %s of %s: want allowed %v", seed, call, what, name, fits)
			}
			if fits {
				k.open += cost
				k.charged = k.plan
				open = append(open, reservation{u, process, cost, k.window, k.made, settle})
			} else {
				change(k.settled, k.settled, true)
			}
		case n < 18 && len(open) > 0:
			i := random.IntN(len(open))
			r := open[i]
			open = slices.Delete(open, i, i+1)
			k, process, name = &keys[r.user], r.process, fmt.Sprint("user", r.user)
			if w := f.Window(); w != k.window {
				*k = key{window: w, plan: k.plan, charged: k.charged, made: k.made}
			}
			if capacity = capacityOf(k.plan); f.Stored {
				capacity = capacityOf(k.charged)
			}
			actual := random.IntN(r.cost + 1)
			what = fmt.Sprintf("settle %d at %d", r.cost, actual)
			r.settle(actual)
			if r.window == k.window && r.made == k.made {
				k.open -= r.cost
				change(k.settled, k.settled+actual, false)
				k.settled += actual
			}
		case n == 18 && k.settled > 0:
			delta := 1 + random.IntN(30)
			if random.IntN(2) == 0 {
				delta = -min(delta, k.settled)
			} else if k.settled+k.open+delta > 100 {
				continue
			}
			what = fmt.Sprintf("adjust %d", delta)
			p.Adjust(name, k.plan, delta)
			change(k.settled, k.settled+delta, false)
			k.settled += delta
			k.charged = k.plan
		case n == 19 && random.IntN(4) == 0:
			what = "reset"
			p.Reset(name)
			noticed := k.noticed
			delete(noticed, process)
			*k = key{window: k.window, plan: k.plan, charged: k.plan, made: k.made + 1, noticed: noticed, denials: k.denials}
		default:
			continue
		}
		got := f.Notices()
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d, call %d: process %d, %s: %s: %d settled, %d open: notices %q, want %q", seed, call, process, name, what, k.settled, k.open, got, want)
		}
		notices += len(got)
	}
	return notices
}

// change returns the notices for a change of the settled spending, or for a denial.
func (k *key) change(process int, user string, before, after, capacity int, denied bool) (want []string) {
	if k.noticed == nil {
		k.noticed = map[int][]int{}
	}
	k.noticed[process] = slices.DeleteFunc(k.noticed[process], func(of int) bool { return 4*before < of })
	if denied {
		if slices.ContainsFunc(k.noticed[process], func(of int) bool { return of >= capacity }) {
			return nil
		}
		k.notice(process, capacity, true)
		return []string{fmt.Sprintf("%d %s 100", process, user)}
	}
	if after+k.open == 0 { // the key is fresh
		delete(k.noticed, process)
	}
	for _, percent := range Shares {
		if before*100 < percent*capacity && after*100 >= percent*capacity {
			if percent == 100 && slices.ContainsFunc(k.noticed[process], func(of int) bool { return of >= capacity && k.denials[process][of] }) {
				continue
			}
			want = append(want, fmt.Sprintf("%d %s %d", process, user, percent))
			if percent == 100 {
				k.notice(process, capacity, false)
			}
		}
	}
	return want
}

// notice records that a process has sent a notice of 100 %. The notice also covers smaller limits.
func (k *key) notice(process, capacity int, denied bool) {
	k.noticed[process] = append(slices.DeleteFunc(k.noticed[process], func(of int) bool { return of <= capacity }), capacity)
	if k.denials == nil {
		k.denials = map[int]map[int]bool{}
	}
	if k.denials[process] == nil {
		k.denials[process] = map[int]bool{}
	}
	k.denials[process][capacity] = denied
}
