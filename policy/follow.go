package policy

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"time"

	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/policy/internal/mark"
)

// Source supplies sets, such as a file's content.
type Source interface {
	// Load returns the newest set, or an error after a bounded time.
	Load(ctx context.Context) (*Set, error)

	// Changes returns a channel that receives when there may be a new set, and
	// is closed after the context has ended. It is called once, before Load.
	Changes(ctx context.Context) <-chan struct{}
}

// After a failure [Follow] waits and tries again. These are its
// first and its longest wait. The wait doubles with each failure.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Follow puts a source's sets in force until the context ends, and then returns the context's error. If a set
// is invalid or cannot be loaded, it changes nothing: Follow logs its error, records it in [Policies.Stats],
// and tries again after 100 ms, later every 5 s. But if such a file or database sets the kill switch, Follow
// sets it for the set in force. A set from Update, or a switch from the page of package admin, stays until
// the source has another set. For each set put in force, Follow logs the first 20 warnings from [Check]. Run
// one Follow for each Policies, but none for an [Options.StandIn]: it gets each set from its Policies.
func Follow(ctx context.Context, p *Policies, src Source) error {
	p.mustBeMade()
	if src == nil {
		return optional.Nil("policy: Follow: src")
	}
	ctx, cancel := context.WithCancel(wait.OrBackground(ctx))
	defer cancel()
	changes := src.Changes(ctx)
	if changes != nil {
		defer drain(changes)
	}
	defer cancel()
	f := follower{p: p, src: src}
	for retry := firstRetry; ; {
		var again <-chan time.Time
		if f.reload(ctx) {
			retry = firstRetry
		} else {
			again = time.After(retry)
			retry = min(2*retry, lastRetry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again:
		case _, ok := <-changes:
			if !ok {
				changes = nil // the context has ended, or the source reports no more changes
			}
		}
	}
}

// drain waits until a source closes its channel.
func drain(changes <-chan struct{}) {
	for range changes {
	}
}

// follower loads sets for one Follow.
type follower struct {
	p   *Policies
	src Source

	last *Set // the latest set of the source put in force; nil before the first
	kill bool // the source's latest kill switch
	read bool // whether the source had a kill switch

	logged   string // the error that was logged last, "" after a success
	loggedAt time.Time
}

// repeat is how often an unchanged error is logged again.
const repeat = time.Minute

// reload loads a set, and puts it in force if it differs from the
// set in force. It reports whether the newest set is in force.
func (f *follower) reload(ctx context.Context) bool {
	set, err := f.src.Load(ctx)
	if ctx.Err() != nil {
		return false
	}
	if err == nil && set == nil {
		err = errors.New("policy: the source has loaded nothing")
	}
	p := f.p
	switch {
	case err != nil:
		p.fault(err)
		f.turn(err)
		f.failed("policy: the rules could not be loaded; the last good ones stay", err)
		return false
	case f.has(set):
		p.fault(nil)
		f.put(set)
		return true
	}
	_, validated := f.src.(interface{ Validated() mark.Validated })
	if err := p.update(set, validated); err != nil {
		f.turn(&mark.Switched{On: set.KillSwitch, Err: err})
		f.failed("policy: the rules are invalid; the last good ones stay", err)
		return false
	}
	f.put(set)
	s := p.Stats()
	level, text := slog.LevelInfo, "policy: rules are in force"
	if set.limitsNothing() {
		level, text = slog.LevelWarn, "policy: rules are in force by which every request passes"
	}
	p.logger().Log(ctx, level, text, slog.String("version", s.Version), slog.Uint64("generation", s.Generation),
		slog.Int("rules", s.Rules), slog.Bool("kill_switch", s.KillSwitch))
	f.warn(set.warnings())
	return true
}

// has reports whether the source still has the same set. At first it compares with the set in force.
func (f *follower) has(set *Set) bool {
	if f.last == nil {
		return reflect.DeepEqual(set, f.p.Current())
	}
	return reflect.DeepEqual(set, f.last) && f.kill == set.KillSwitch
}

// put records the source's set in force. It may have been changed by hand since.
func (f *follower) put(set *Set) { f.last, f.kill, f.read, f.logged = set, set.KillSwitch, true, "" }

// turn sets the kill switch of a source whose set has an error, if the switch has changed.
func (f *follower) turn(err error) {
	s := (*mark.Switched)(nil)
	if !errors.As(err, &s) || f.read && f.kill == s.On {
		return
	}
	f.kill, f.read = s.On, true
	if f.p.turn(s.On) != s.On {
		f.p.logger().Warn("policy: the kill switch was turned; the last good rules stay", slog.Bool("kill_switch", s.On))
	}
}

// maxWarnings is the maximum number of logged warnings for each set.
const maxWarnings = 20

// warn logs the warnings about a set in force.
func (f *follower) warn(all []*Error) {
	for _, w := range all[:min(len(all), maxWarnings)] {
		f.p.logger().Warn("policy: a rule in force has a mistake", slog.String("rule", w.Rule), slog.String("field", w.Field), slog.Any("warning", w.Err))
	}
	if more := len(all) - maxWarnings; more > 0 {
		f.p.logger().Warn("policy: the rules in force have more mistakes", slog.Int("unlogged", more))
	}
}

// limitsNothing reports whether the set limits no request. An empty table is such a set, and so is a rule with
// Allow whose match was forgotten. Both look like rules without any denials. A shadow rule counts as a limit.
func (s *Set) limitsNothing() bool {
	counts := false
	for _, r := range s.complete() {
		switch {
		case r.Disabled:
		case !r.Allow:
			counts = true
		case r.Match.all():
			return true
		}
	}
	return s.KillSwitch || !counts
}

// failed logs an error, unless the same error was logged less than a minute ago.
func (f *follower) failed(text string, err error) {
	if err.Error() == f.logged && time.Since(f.loggedAt) < repeat {
		return
	}
	f.logged, f.loggedAt = err.Error(), time.Now()
	f.p.logger().Error(text, slog.Any("error", err))
}

func (p *Policies) logger() *slog.Logger {
	if p.log != nil {
		return p.log
	}
	return slog.Default()
}
