package pace

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"
	"time"
)

// Advice is the part of a server's answer that concerns the next requests.
type Advice struct {
	// Wait is the time for which nothing may be sent. It is 0 if the answer has none.
	Wait time.Duration
	// Refused reports that the request was denied.
	Refused bool
	// Answered reports that there is an answer. Broken reports that there is none because the server could not be reached.
	Answered, Broken bool
	// Budgets are the remaining budgets, one for each policy.
	Budgets []Budget
}

// Budget is a number of requests or units that a server leaves until a time.
type Budget struct {
	Policy string // "" if the answer names none
	Left   int64
	Units  bool // a request counts as its units, such as tokens, and not as one
	Until  time.Time
	// Limit is the whole budget, 0 if it is not known. Refills reports
	// that the budget comes back bit by bit, and is whole at Until.
	Limit   int64
	Refills bool
	Window  time.Duration // the time in which the whole budget comes back, 0 if it is not known

	inferred bool          // the server has not reported Refills
	first    time.Duration // the time after which the first unit comes back; if 0, it is every
	every    time.Duration // the time in which a unit comes back; 0 if all come back at Until
	flying   int64         // the number of requests in flight when it was received
	name     budgetName
	seq      uint64    // the number of the request with this answer
	sent     time.Time // the time at which that request was sent
	received time.Time // the time at which the answer was received
}

// informs reports whether the remaining requests show the use by others. Under a small limit hardly any requests ever remain.
func (b Budget) informs() bool { return !b.Units && (b.Limit <= 0 || b.Limit >= leastLimit) }

// budgetName identifies a budget of a server. If a policy has several budgets, they are numbered in the order of their ends.
type budgetName struct {
	policy string
	units  bool
	number int
}

// kept returns the name in a form that can be kept: its text is not a part of a long header.
func (n budgetName) kept() budgetName {
	n.policy = strings.Clone(n.policy)
	return n
}

// maxBudgets is the maximum number of policies that are kept for one server.
const maxBudgets = 16

// maxName is the maximum length of a policy's name that is kept. Servers choose the names.
const maxName = 64

// bounded returns the advice within bounds: no wait is longer than longest from now, and budgets and the length of their
// names are limited. It keeps the budgets that leave least, and replaces a long name by a hash. Each kept budget has a
// different name, because all budgets apply, even those of one policy. A budget of units differs from a budget of requests.
func (a Advice) bounded(longest time.Duration, now time.Time) Advice {
	a.Wait = min(a.Wait, longest)
	a.Budgets = slices.Clone(a.Budgets)
	if len(a.Budgets) > maxBudgets {
		slices.SortStableFunc(a.Budgets, func(b, c Budget) int { return cmp.Compare(b.Left, c.Left) })
		a.Budgets = slices.Clone(a.Budgets[:maxBudgets])
	}
	for i := range a.Budgets {
		b := &a.Budgets[i]
		if end := now.Add(longest); b.Until.After(end) {
			b.Until = end
		}
		if len(b.Policy) > maxName {
			sum := sha256.Sum256([]byte(b.Policy))
			b.Policy = string(sum[:])
		}
	}
	for i := range a.Budgets {
		b := &a.Budgets[i]
		b.name = budgetName{b.Policy, b.Units, 0}
		for j, other := range a.Budgets {
			if other.Policy == b.Policy && other.Units == b.Units && (other.Until.Before(b.Until) || other.Until.Equal(b.Until) && j < i) {
				b.name.number++
			}
		}
	}
	return a
}

// MaxWait is the longest wait that is accepted from a server.
const MaxWait = 10 * 365 * 24 * time.Hour

// DefaultMaxWait bounds the time for which a request may wait where a user's options set no bound.
const DefaultMaxWait = time.Minute

// Bound returns the MaxWait of [Options] for the MaxWait of a user's options. It defaults to [DefaultMaxWait]; if negative,
// there is no bound.
func Bound(maxWait time.Duration) time.Duration { return max(0, cmp.Or(maxWait, DefaultMaxWait)) }

// Clamp limits a wait to the accepted range.
func Clamp(d time.Duration) time.Duration { return min(max(0, d), MaxWait) }
