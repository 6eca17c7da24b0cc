// Package byhand is what package admin and the command policy can do with package policy, and programs cannot. Package sqlsource uses
// Validate and CheckCost.
package byhand

import "github.com/weir-go/ratelimit/policy/internal/shown"

// KillSwitch turns the kill switch of a *policy.Policies, and reports whether it was on. Between a Current and an Update, another set could
// come into force, and be lost. Package policy sets it.
var KillSwitch func(policies any, on bool) (before bool)

// Parse and Check are policy.Parse and policy.Check of the file at a path, whose content is data, with the files of its lists. Engines is a
// []policy.Engine, a set a *policy.Set, and found a []*policy.Error. Package policy sets them.
var (
	Parse func(path string, data []byte) (set any, err error)
	Check func(path string, data []byte, engines any) (set, found any)
)

// Complete returns the rules of a *policy.Set with their defaults, a []policy.Rule that must not be changed. Validate returns nil, or the
// *policy.Error about the first mistake for which policy.New refuses the set. CheckCost returns an error if a policy.Cost is invalid, or none.
// Package policy sets them.
var (
	Complete  func(set any) (rules any)
	Validate  func(set any) error
	CheckCost func(cost any) error
)

// Shown returns a policy.Explanation as it is shown. Package policy sets it.
var Shown func(explanation any) shown.Explanation

// Own is a policy.Subject without a plan, under the limit of the key's last decision, as far as that is known.
type Own struct {
	Rule string
	Key  []string
}

// Attribute reports that there is none.
func (Own) Attribute(string) (string, bool) { return "", false }
