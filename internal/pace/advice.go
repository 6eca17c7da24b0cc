package pace

import (
	"slices"
	"time"
)

// Advice is what a server's answer says about when the next request may be sent.
type Advice struct {
	// Wait is how long nothing may be sent. It is 0 if the answer does not say.
	Wait time.Duration
	// Refused reports that the request was denied.
	Refused bool
	// Answered reports that there is an answer.
	Answered bool
	// Budgets are how much is left, of each policy.
	Budgets []Budget
}

// Budget is how much a server leaves for a time: requests, or units.
type Budget struct {
	Policy string // "" if the answer names none
	Left   int64
	Units  bool // a request counts as its units, such as tokens, and not as one
	Until  time.Time

	seq  uint64    // of the request whose answer said so
	sent time.Time // when that was sent
	told time.Time // when that was received
}

// capped returns the advice with no wait longer than that, from now.
func (a Advice) capped(longest time.Duration, now time.Time) Advice {
	a.Wait = min(a.Wait, longest)
	a.Budgets = slices.Clone(a.Budgets)
	for i, b := range a.Budgets {
		if end := now.Add(longest); b.Until.After(end) {
			a.Budgets[i].Until = end
		}
	}
	return a
}

// MaxWait is the longest wait that is believed. Nobody means more.
const MaxWait = 10 * 365 * 24 * time.Hour

// Clamp brings a wait into the range that is believed.
func Clamp(d time.Duration) time.Duration { return min(max(0, d), MaxWait) }
