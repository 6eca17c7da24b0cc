// Package byhand has functions of package policy for package admin and the command policy,
// which other programs cannot call. Package sqlsource uses Validate and CheckCost.
package byhand

import "github.com/weir-go/ratelimit/policy/internal/shown"

// KillSwitch turns the kill switch of a *policy.Policies on or off, and reports whether it was on. With Current
// and Update instead, a set that comes into force in between would be lost. Package policy sets this variable.
var KillSwitch func(policies any, on bool) (before bool)

// Parse and Check are policy.Parse and policy.Check for a file, given its content as data. They also read its lists' files.
// Engines is a []policy.Engine, a set is a *policy.Set, and found is a []*policy.Error. Package policy sets these variables.
var (
	Parse func(path string, data []byte) (set any, err error)
	Check func(path string, data []byte, engines any) (set, found any)
)

// Complete returns the rules of a *policy.Set with their defaults as a []policy.Rule. Callers must not
// change it. Validate returns nil, or the *policy.Error about the set's first mistake, as policy.New
// does. CheckCost returns an error if a policy.Cost is invalid. Package policy sets these variables.
var (
	Complete  func(set any) (rules any)
	Validate  func(set any) error
	CheckCost func(cost any) error
)

// Shown returns a policy.Explanation in the form in which it is shown. Package policy sets this variable.
var Shown func(explanation any) shown.Explanation

// Own is a policy.Subject without a plan. It has the limit of the key's last decision, if that is known.
type Own struct {
	Rule string
	Key  []string
}

// Attribute returns false, because there is no plan.
func (Own) Attribute(string) (string, bool) { return "", false }
