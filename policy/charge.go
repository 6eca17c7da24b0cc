package policy

import "github.com/weir-go/ratelimit"

// charge is one rule's charge for a request.
type charge struct {
	Rule  int              // its Budget's index
	Key   string           // the budget's key; it may be a secret
	Plan  string           // the plan of the limit, or ""
	Cost  int              // the units to charge
	Fixed bool             // whether the cost is the rule's and not the caller's
	Empty bool             // whether the limit denied because no unit was left
	Real  int              // the real cost of a settled charge, if its rule settles
	Limit *ratelimit.Limit // the key's limit; it must not be changed

	Weight int    // the key's weight if it shares Limit; 0 if it has its own budget
	Tariff string // the request's plan, even if it has no weight; set if Weight is not 0
}
