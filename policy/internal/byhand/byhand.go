// Package byhand gives package admin and the command policy some functions of package
// policy that other programs cannot call. Package sqlsource uses Validate and CheckCost.
package byhand

import "github.com/weir-go/ratelimit/policy/internal/shown"

// KillSwitch turns the kill switch of a *policy.Policies on or off, and reports whether it was on. With
// Current and Update instead, a set put in force in between would be lost. Package policy sets this variable.
var KillSwitch func(policies any, on bool) (before bool)

// Parse and Check are policy.Parse and policy.Check for a file whose content is data. They also read the files with its
// lists. engines is a []policy.Engine, set a *policy.Set, and found a []*policy.Error. Package policy sets these variables.
var (
	Parse func(path string, data []byte) (set any, err error)
	Check func(path string, data []byte, engines any) (set, found any)
)

// Complete returns the rules of a *policy.Set with their defaults, as a []policy.Rule. Callers must not
// change it. Validate returns nil, or the *policy.Error about the set's first mistake, as policy.New
// does. CheckCost returns an error if a policy.Cost is invalid. Package policy sets these variables.
var (
	Complete  func(set any) (rules any)
	Validate  func(set any) error
	CheckCost func(cost any) error
)

// Shown returns the shown form of a policy.Explanation. Package policy sets this variable.
var Shown func(explanation any) shown.Explanation

// Own is a policy.Subject without a plan. The limit in the key's last decision applies, if it is known.
type Own struct {
	Rule string
	Key  []string
}

// Attribute returns false, because there is no plan.
func (Own) Attribute(string) (string, bool) { return "", false }
