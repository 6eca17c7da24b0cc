// Package byhand lets package admin turn the kill switch of the policies in force, whatever set they are of. Between a Current and an
// Update of its own, another set could come into force, and be lost.
package byhand

// KillSwitch turns the kill switch of a *policy.Policies, and reports whether it was on. Package policy sets it.
var KillSwitch func(policies any, on bool) (before bool)
