package policy

import (
	"time"

	"github.com/weir-go/ratelimit/policy/internal/byhand"
)

func init() {
	byhand.KillSwitch = func(policies any, on bool) bool { return policies.(*Policies).turn(on) }
}

// turn sets the kill switch of the set in force, here and in [Options.StandIn],
// and reports whether it was on. The rules stay as they are.
func (p *Policies) turn(on bool) (before bool) {
	together, lead := p.hold()
	if lead != nil {
		return lead.turn(on)
	}
	defer release(together)
	before = p.now().set.KillSwitch
	for _, p := range together {
		last := p.now()
		if last.set.KillSwitch == on {
			continue
		}
		set, next := *last.set, *last
		set.KillSwitch = on
		next.set, next.number, next.loadedAt = &set, last.number+1, time.Now()
		p.current.Store(&next)
	}
	return before
}
