package policy

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"time"
)

// Source is where sets come from: a [File], a table ([SQL]), or anything else.
type Source interface {
	// Load returns the set as it is now, or why there is none. It is bounded in time.
	Load(ctx context.Context) (*Set, error)

	// Changes returns a channel that receives when there may be something new to load,
	// a fault among it. One that has not been received yet stands for all since. It is
	// closed some time after the context has ended. It is called once, before Load, so
	// that nothing is missed in between.
	Changes(ctx context.Context) <-chan struct{}
}

// Follow keeps p up to date with a source until the context ends, and returns the
// context's error. It loads at once, and then whenever the source tells of a change. A set
// that cannot be loaded or is invalid changes nothing: the last good one stays in force, the
// error is logged and told by [Policies.Stats], and the next change is tried again. It never
// blocks a decision. Run one for each Policies, in a goroutine of its own.
func Follow(ctx context.Context, p *Policies, src Source) error {
	p.mustBeMade()
	if src == nil {
		return errors.New("policy: Follow was given no Source")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := src.Changes(ctx)
	defer drain(changes)
	defer cancel()
	for {
		p.reload(ctx, src)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, ok := <-changes:
			if !ok {
				<-ctx.Done()
				return ctx.Err()
			}
		}
	}
}

// drain waits until a source has ended what it had started.
func drain(changes <-chan struct{}) {
	for range changes {
	}
}

// reload loads a set and puts it in force, if it differs from the one that is.
func (p *Policies) reload(ctx context.Context, src Source) {
	set, err := src.Load(ctx)
	if ctx.Err() != nil {
		return
	}
	if err == nil && set == nil {
		err = errors.New("policy: the source has loaded nothing")
	}
	if err != nil {
		p.fault(err)
		p.logger().Error("policy: the rules could not be loaded; the last good ones stay", slog.Any("err", err))
		return
	}
	if reflect.DeepEqual(set, p.Current()) {
		p.fault(nil)
		return
	}
	if err := p.Update(set); err != nil {
		p.logger().Error("policy: the rules are invalid; the last good ones stay", slog.Any("err", err))
		return
	}
	s := p.Stats()
	p.logger().Info("policy: rules are in force", slog.String("version", s.Version), slog.Uint64("generation", s.Generation),
		slog.Int("rules", s.Rules), slog.Bool("kill_switch", s.KillSwitch))
}

func (p *Policies) logger() *slog.Logger {
	if p.log != nil {
		return p.log
	}
	return slog.Default()
}

// poll calls look now and then until the context ends.
func poll(ctx context.Context, every time.Duration, look func()) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			look()
		}
	}
}

// signal sends on a channel with room for one, unless it is full.
func signal(changes chan<- struct{}) {
	select {
	case changes <- struct{}{}:
	default:
	}
}
