// Package byhand is what package admin can do with the policies of package policy, and programs cannot.
package byhand

// KillSwitch turns the kill switch of a *policy.Policies, and reports whether it was on. Between a Current and an Update, another set could
// come into force, and be lost. Package policy sets it.
var KillSwitch func(policies any, on bool) (before bool)

// Own is a policy.Subject without a plan, under the limit of the key's last decision, as far as that is known.
type Own struct {
	Rule string
	Key  []string
}

// Attribute reports that there is none.
func (Own) Attribute(string) (string, bool) { return "", false }
