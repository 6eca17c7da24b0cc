// Package limits derives limits from a rule's limit: with a grace, by an attribute of a
// request, or for one of several processes. It also computes a key's state from a decision.
package limits

import (
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// Counts reports whether a limit counts anything: it is false for Unlimited and Blocked.
func Counts(l ratelimit.Limit) bool {
	return l.Algorithm != ratelimit.AlgorithmUnlimited && l.Algorithm != ratelimit.AlgorithmBlocked
}

// ShareOf returns one process's part of a limit.
func ShareOf(limit ratelimit.Limit, processes int) ratelimit.Limit {
	if processes <= 1 {
		return limit
	}
	return failover.Share(limit, processes).Named(limit.Name)
}
