package ratelimittest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
)

// methods are a limiter's methods besides Allow and Take. A field is
// nil if the limiter lacks the method, or if Config.Skip names it.
type methods struct {
	peek     func(ctx context.Context, key string, cost int) (ratelimit.Decision, error)
	wait     func(ctx context.Context, key string, cost int) error
	adjust   func(ctx context.Context, key string, delta int) error
	reset    func(ctx context.Context, key string) error
	setLimit func(ctx context.Context, limit ratelimit.Limit) error
	sweep    func() int
	count    func() int
	reserver ratelimit.Reserver[string]
	join     func(limiters []ratelimit.Joining) (ratelimit.Joint, error)
}

// methodNames are the methods' names in Config.Skip and Config.Want.
var methodNames = []string{"Peek", "Reserve", "Wait", "Adjust", "Reset", "SetLimit", "Sweep", "Len", "Join"}

// calendars stands for calendar limits in Config.Skip and Config.Want.
const calendars = "Calendar"

// concurrents stands for limits of units in use in Config.Skip and Config.Want.
const concurrents = "Concurrent"

// methodsOf finds a limiter's methods by their signatures. It knows the signatures of
// ratelimit.Keyed, and the same with a context or an error added, for methods with I/O.
func (c *Config) methodsOf(l ratelimit.Limiter[string]) (m methods) {
	if l == nil {
		return m
	}
	set(c, "Peek", &m.peek, peekOf(l))
	set(c, "Wait", &m.wait, waitOf(l))
	set(c, "Adjust", &m.adjust, adjustOf(l))
	set(c, "Reset", &m.reset, resetOf(l))
	set(c, "SetLimit", &m.setLimit, setLimitOf(l))
	if s, ok := l.(interface{ Sweep() int }); ok {
		set(c, "Sweep", &m.sweep, s.Sweep)
	}
	if count := countOf(l); count != nil {
		set(c, "Len", &m.count, count)
	}
	if r, ok := l.(ratelimit.Reserver[string]); ok {
		set(c, "Reserve", &m.reserver, r)
	}
	if j, ok := l.(ratelimit.Joinable); ok {
		set(c, "Join", &m.join, j.Join)
	}
	return m
}

// set stores a method, unless Config.Skip names it.
func set[F any](c *Config, name string, to *F, method F) {
	if !slices.Contains(c.Skip, name) {
		*to = method
	}
}

// countOf returns a function that counts a limiter's tracked keys: its Len, or its Stats' Keys.
func countOf(l any) func() int {
	switch l := l.(type) {
	case interface{ Len() int }:
		return l.Len
	case interface{ Stats() ratelimit.Stats }:
		return func() int { return l.Stats().Keys }
	}
	return nil
}

func peekOf(l any) func(context.Context, string, int) (ratelimit.Decision, error) {
	switch l := l.(type) {
	case interface {
		Peek(key string, cost int) (ratelimit.Decision, error)
	}:
		return func(_ context.Context, key string, cost int) (ratelimit.Decision, error) { return l.Peek(key, cost) }
	case interface {
		Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error)
	}:
		return l.Peek
	}
	return nil
}

func waitOf(l any) func(context.Context, string, int) error {
	if l, ok := l.(interface {
		Wait(ctx context.Context, key string, cost int) error
	}); ok {
		return l.Wait
	}
	return nil
}

func adjustOf(l any) func(context.Context, string, int) error {
	switch l := l.(type) {
	case interface {
		Adjust(key string, delta int) error
	}:
		return func(_ context.Context, key string, delta int) error { return l.Adjust(key, delta) }
	case interface {
		Adjust(ctx context.Context, key string, delta int) error
	}:
		return l.Adjust
	}
	return nil
}

func resetOf(l any) func(context.Context, string) error {
	switch l := l.(type) {
	case interface{ Reset(key string) }:
		return func(_ context.Context, key string) error { l.Reset(key); return nil }
	case interface{ Reset(key string) error }:
		return func(_ context.Context, key string) error { return l.Reset(key) }
	case interface {
		Reset(ctx context.Context, key string)
	}:
		return func(ctx context.Context, key string) error { l.Reset(ctx, key); return nil }
	case interface {
		Reset(ctx context.Context, key string) error
	}:
		return l.Reset
	}
	return nil
}

func setLimitOf(l any) func(context.Context, ratelimit.Limit) error {
	switch l := l.(type) {
	case interface {
		SetLimit(limit ratelimit.Limit) error
	}:
		return func(_ context.Context, limit ratelimit.Limit) error { return l.SetLimit(limit) }
	case interface {
		SetLimit(ctx context.Context, limit ratelimit.Limit) error
	}:
		return l.SetLimit
	}
	return nil
}

// names returns the found methods' names, in methodNames' order.
func (m *methods) names() (found []string) {
	for i, has := range []bool{m.peek != nil, m.reserver != nil, m.wait != nil, m.adjust != nil,
		m.reset != nil, m.setLimit != nil, m.sweep != nil, m.count != nil, m.join != nil} {
		if has {
			found = append(found, methodNames[i])
		}
	}
	return found
}

// found lists the optional methods of the engine's limiters, for the
// log. If a method in Config.Want is missing, it returns an error.
func (c *Config) found(limit ratelimit.Limit) (text string, err error) {
	l, err := c.New(limit)
	if err != nil {
		return "", fmt.Errorf("ratelimittest: Config.New(%v): %w", limit, err)
	}
	m := c.methodsOf(l)
	names := m.names()
	for _, name := range c.Want {
		if name != calendars && name != concurrents && !slices.Contains(names, name) {
			err = fmt.Errorf("ratelimittest: Config.Want has %s, and the limiters (%T) have no such method with a signature that is known", name, l)
		}
	}
	if c.Close != nil {
		c.Close(l)
	}
	return strings.Join(append(names, "nothing else"), ", "), err
}

// Conditions of checks: each reports whether the limiter under test has a method.

func canPeek(h *history) bool     { return h.has.peek != nil }
func canReserve(h *history) bool  { return h.has.reserver != nil }
func canWait(h *history) bool     { return h.has.wait != nil }
func canAdjust(h *history) bool   { return h.has.adjust != nil }
func canReset(h *history) bool    { return h.has.reset != nil }
func canSetLimit(h *history) bool { return h.has.setLimit != nil }
func canSweep(h *history) bool    { return h.has.sweep != nil }
func canCount(h *history) bool    { return h.has.count != nil }
func canJoin(h *history) bool     { return h.has.join != nil }

// canSetBack reports whether the clock can be set back.
func canSetBack(h *history) bool { return h.cfg.Clock != nil }

// canSetWall reports whether the limit is a calendar and the wall clock can be set.
func canSetWall(h *history) bool { return isCalendar(h.limit) && h.cfg.Clock != nil }

// all returns a condition that holds if all the given ones hold.
func all(conditions ...func(h *history) bool) func(h *history) bool {
	return func(h *history) bool {
		for _, c := range conditions {
			if !c(h) {
				return false
			}
		}
		return true
	}
}

// canPair reports whether the suite can make two clients of one store.
func canPair(h *history) bool { return h.cfg.NewPair != nil }
