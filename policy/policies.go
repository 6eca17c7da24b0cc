// Package policy limits requests by rules. The rules are data: they are
// read from a file or a database, and can be changed while they are in use.
//
//	set, err := policy.Parse(data) // YAML or JSON
//	policies, err := policy.New(set, nil)
//	d, err := policies.Take(ctx, policy.HTTP(r, policy.Attributes{"user": user, "plan": plan}), 1)
//
// Either all rules matching a request are charged, or none is. Spending stays when rules change. Package admin
// is a page for operators, package audit stores denials, and package sqlsource reads rules from a database.
package policy

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy/internal/sketch"
	"github.com/weir-go/ratelimit/stats"
)

// Options configure [New]. Nil and the zero Options select the defaults.
type Options struct {
	// Engine holds the budgets. It defaults to Memory(nil).
	Engine Engine
	// OnDecision is called after each decision, in the caller's goroutine,
	// while no lock is held. Explain, Peek, Adjust and Reset do not call it.
	OnDecision func(Decision)
	// OnThreshold is called for rules with [Rule.Notify] when a charge crosses a share of the limit. Take, Wait, Settle
	// and Adjust call it if the key's spending was below the share before the charge and is not below it after the
	// charge. The engine's answer contains both. So each crossing makes one call, in the charging process, even if many
	// processes share the budgets. If a charge crosses several shares, it makes one call for each, the lowest first.
	//
	// Reserve does not call it, because its estimate is not spending. Settle calls it for the real cost. Units
	// under [ratelimit.Concurrent] are in use from Reserve on. The spending excludes regained units and the
	// estimates of open reservations. If a reservation is never settled, its estimate counts as open until the
	// key is fresh. The engines in memory, on Redis and in a database know all processes' estimates. They
	// answer a Settle and an Adjust with the spending before and after it. Leases, and engines by other
	// authors, do not. With those, other processes' estimates count as spent, and a Peek follows each Settle
	// or Adjust. If other calls charge the key before the Peek, the crossing may be missed.
	//
	// A denial for lack of budget makes a call for 100 %, even if some units are left, once for each process until
	// the key is fresh again. The charge of the last unit then makes no further call. Limits other than fixed
	// windows and calendars regain all the time, so traffic near a share may cross it every second. Under them a
	// process calls again for a share only after it has found the key fresh, or with less than a quarter of the
	// share spent. For both rules, each Policies remembers the last calls for up to 65,536 keys. For further keys
	// a call may be made too early. A lowered limit makes no call, and neither does a set with other shares.
	//
	// It runs in the caller's goroutine, while no lock is held.
	OnThreshold func(Threshold)
	// ReuseRules saves 176 bytes per decision and rule. OnDecision must then not keep the Rules.
	ReuseRules bool
	// Logger logs [Follow]'s events. It defaults to slog.Default().
	Logger *slog.Logger
	// StandIn are the policies that decide while these cannot, for example as the second limiter of package failover.
	// New, Update and Follow put each set in force either in both or, if one engine refuses it, in neither. Update
	// and Follow of the StandIn do the same. A StandIn may have its own StandIn. It can be the StandIn of only one
	// Policies. When package failover calls Repay, the StandIn's spending is charged here. Nil means none.
	StandIn *Policies
}

// Decision is the argument of [Options.OnDecision].
type Decision = stats.PolicyDecision

// Policies decides by the rules in force. Make one with [New]. It is safe for concurrent use.
type Policies struct {
	engine     Engine
	onDecision func(Decision)
	notifier   notifier
	reuseRules bool
	log        *slog.Logger
	current    atomic.Pointer[generation]
	killed     atomic.Uint64
	badLimits  atomic.Uint64
	exempt     atomic.Uint64
	unknown    map[string]*atomic.Uint64 // unknown plans since New, by a rule's id; guarded by updating
	denials    *sketch.Sketch
	lasts      lastLimits
	queries    sync.Pool // has *query, so a decision allocates nothing
	waits      waits

	standIn *Policies             // gets each set together with this one; nil if there is none
	debts   atomic.Pointer[debts] // a StandIn's debts; nil if this is none

	updating sync.Mutex // held while a set is put in force; locked before the StandIn's, and before mu
	lead     *Policies  // the policies whose StandIn this is, or nil; guarded by updating
	gone     gone
	forget   *time.Timer // expires the rules in gone; nil if there are none; guarded by updating

	mu      sync.Mutex // guards the fields below, and is never held for long
	failed  error
	failedT time.Time
	checked time.Time // when the set in force was last found to be the newest
}

var _ ratelimit.Reserver[Request] = (*Policies)(nil)

// fault records why a set could not be loaded, or nil if it was loaded.
func (p *Policies) fault(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.failed, p.failedT = err, time.Time{}
	if err != nil {
		p.failedT = now
	} else {
		p.checked = now
	}
}

// Current returns the set in force.
func (p *Policies) Current() *Set {
	p.mustBeMade()
	return p.now().set
}

func (p *Policies) now() *generation {
	s := p.current.Load()
	if s == nil {
		panic(optional.Zero("policy", "Policies", "New"))
	}
	return s
}

func (p *Policies) mustBeMade() {
	if p == nil || p.engine == nil {
		panic(optional.Zero("policy", "Policies", "New"))
	}
}

// Stats returns the policies' counters and state.
func (p *Policies) Stats() stats.Policies {
	p.mustBeMade()
	s := p.now()
	var unknown map[string]uint64
	for _, r := range s.rules {
		if r.unknownPlans != nil {
			if unknown == nil {
				unknown = map[string]uint64{}
			}
			unknown[r.Name] = r.unknownPlans.Load()
		}
	}
	tables := s.tables()
	p.mu.Lock()
	defer p.mu.Unlock()
	return stats.Policies{
		UnknownPlans: unknown,
		Version:      s.set.Version,
		Generation:   s.number,
		LoadedAt:     s.loadedAt,
		CheckedAt:    p.checked,
		Rules:        len(s.set.Rules),
		Names:        s.names,
		KillSwitch:   s.set.KillSwitch,
		Killed:       p.killed.Load(),
		Exempt:       p.exempt.Load(),
		BadLimits:    p.badLimits.Load(),
		Tables:       tables,
		LastError:    p.failed,
		LastErrorAt:  p.failedT,
	}
}

// Flush gives back the units that the rules' limiters hold for this process, for example
// leases, and waits until they are back. Call it on shutdown, after the last decision.
// Limiters from [Memory], for example, hold none. Flush returns all limiters' errors.
func (p *Policies) Flush(ctx context.Context) error {
	return p.now().flush(ctx)
}
