// Package reports delays a call's reports until it is known whether its answer counts. Package
// failover needs it: it calls a limiter whose answer may be too late or a failure, and then
// another limiter decides. So each request is reported once, by the limiter that decides on it.
package reports

import (
	"context"
	"sync"
)

// Held is a call's context. It holds the call's reports. Make one with [With].
type Held struct {
	context.Context
	outer *Held

	mu    sync.Mutex // guards the fields below
	state state
	list  []func()
}

type state uint8

const (
	open     state = iota // reports are held
	released              // reports are passed on
	dropped               // reports are dropped, even those of a late answer
)

type key struct{}

// With returns a context for one call. It holds that call's reports,
// until Release or Drop. One must be called after the call.
func With(ctx context.Context) *Held { return &Held{Context: ctx, outer: Of(ctx)} }

// Value returns h for the key that Of uses. For other keys it returns the value in the parent context.
func (h *Held) Value(k any) any {
	if k == (key{}) {
		return h
	}
	return h.Context.Value(k)
}

// Of returns the Held that receives a call's reports under ctx, or nil if they are passed on at once.
func Of(ctx context.Context) *Held {
	if ctx == nil {
		return nil
	}
	h, _ := ctx.Value(key{}).(*Held)
	return h
}

// Add holds, calls or drops a report, depending on the state. A report must not refer to memory that changes.
func (h *Held) Add(report func()) {
	h.mu.Lock()
	s := h.state
	if s == open {
		h.list = append(h.list, report)
	}
	h.mu.Unlock()
	if s == released {
		h.pass(report)
	}
}

func (h *Held) pass(report func()) {
	if h.outer != nil {
		h.outer.Add(report)
	} else {
		report()
	}
}

// Release calls the held reports, in order, on the caller's goroutine.
func (h *Held) Release() {
	for _, report := range h.end(released) {
		h.pass(report)
	}
}

// Drop drops the reports.
func (h *Held) Drop() { h.end(dropped) }

func (h *Held) end(s state) []func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.list
	h.state, h.list = s, nil
	return list
}

// Send calls f with e now, or adds the call to the reports held for ctx. It
// is a function with type parameters: so reports at once allocate nothing.
func Send[E any](ctx context.Context, f func(E), e E) {
	if h := Of(ctx); h != nil {
		hold(h, f, e)
		return
	}
	f(e)
}

//go:noinline
func hold[E any](h *Held, f func(E), e E) { h.Add(func() { f(e) }) }
