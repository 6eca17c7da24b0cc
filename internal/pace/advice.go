package pace

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"
	"time"
)

// Advice is the part of a server's answer that affects later requests.
type Advice struct {
	// Wait is how long nothing may be sent, or 0 if the answer demands no wait.
	Wait time.Duration
	// Refused is set if the request was denied.
	Refused bool
	// Answered is set if there is an answer. Broken is set if there is none because the server could not be reached.
	Answered, Broken bool
	// Budgets are the remaining budgets. There is one for each policy.
	Budgets []Budget
}

// Budget is the number of requests or units left by a server until an instant.
type Budget struct {
	Policy string // "" if the answer names none
	Left   int64
	Units  bool // whether a request counts as its units, such as tokens, and not as one
	Until  time.Time
	// Limit is the whole budget, or 0 if not known. Refills is set
	// if the budget comes back bit by bit, and is whole at Until.
	Limit   int64
	Refills bool
	Window  time.Duration // the time for the whole budget to come back; 0 if not known

	inferred bool          // whether Refills was derived, because the server has not reported it
	first    time.Duration // the time until the first unit comes back; if 0, every applies
	every    time.Duration // the time for one unit to come back; 0 if all come back at Until
	flying   int64         // requests in flight when the answer was received
	name     budgetName
	seq      uint64    // the number of the request with this answer
	sent     time.Time // when the request was sent
	received time.Time // when the answer was received
}

// informs reports whether the remaining requests reveal other users. Under
// a small limit hardly any requests ever remain, so they reveal nothing.
func (b Budget) informs() bool { return !b.Units && (b.Limit <= 0 || b.Limit >= leastLimit) }

// budgetName identifies a server's budget. One policy's several budgets are numbered in the order of their ends.
type budgetName struct {
	policy string
	units  bool
	number int
}

// kept returns a copy of the name. The copy does not keep a long header in memory.
func (n budgetName) kept() budgetName {
	n.policy = strings.Clone(n.policy)
	return n
}

// maxBudgets is the maximum number of budgets kept for one server.
const maxBudgets = 16

// maxName is the maximum length of a policy's name. It is bounded because servers choose the names.
const maxName = 64

// bounded returns the advice within bounds. No wait is longer than longest from now. It keeps at most maxBudgets
// budgets, the ones with the least left, and replaces long names by hashes. Each kept budget has its own name,
// because all budgets apply, even several of one policy. A budget of units differs from a budget of requests.
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

// MaxWait is the longest wait accepted from a server.
const MaxWait = 10 * 365 * 24 * time.Hour

// DefaultMaxWait bounds a request's wait if the user's options set no bound.
const DefaultMaxWait = time.Minute

// Bound returns MaxWait for [Options], given the MaxWait of a user's
// options. It defaults to [DefaultMaxWait]; if negative, there is no bound.
func Bound(maxWait time.Duration) time.Duration { return max(0, cmp.Or(maxWait, DefaultMaxWait)) }

// Clamp limits a server's wait to the accepted range.
func Clamp(d time.Duration) time.Duration { return min(max(0, d), MaxWait) }
