// Package byhand is what package admin and the command policy can do with package policy, and programs cannot.
package byhand

// KillSwitch turns the kill switch of a *policy.Policies, and reports whether it was on. Between a Current and an Update, another set could
// come into force, and be lost. Package policy sets it.
var KillSwitch func(policies any, on bool) (before bool)

// Parse and Check are policy.Parse and policy.Check of the file at a path, whose content is data, with the files of its lists. Engines is a
// []policy.Engine, a set a *policy.Set, and found a []*policy.Error. Package policy sets them.
var (
	Parse func(path string, data []byte) (set any, err error)
	Check func(path string, data []byte, engines any) (set, found any)
)

// Own is a policy.Subject without a plan, under the limit of the key's last decision, as far as that is known.
type Own struct {
	Rule string
	Key  []string
}

// Attribute reports that there is none.
func (Own) Attribute(string) (string, bool) { return "", false }
