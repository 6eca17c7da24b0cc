// Package reports holds the reports of a call back until it is known whether its answer counts: package failover calls a limiter whose answer
// may come too late or be a failure, and another limiter decides then. Each request is so reported once, by the limiter that has decided it.
package reports

import (
	"context"
	"sync"
)

// Held is the context of a call, and holds its reports. Make one with [With].
type Held struct {
	context.Context
	outer *Held

	mu    sync.Mutex // guards the fields below
	state state
	list  []func()
}

type state uint8

const (
	open     state = iota // reports are kept
	released              // reports are passed on
	dropped               // reports are dropped, also of an answer that comes late
)

type key struct{}

// With returns a context for one call, whose reports it holds. One of Release and Drop must be called after the call.
func With(ctx context.Context) *Held { return &Held{Context: ctx, outer: Of(ctx)} }

// Value returns h for the key that Of uses. For other keys it returns the value of the context from which h was made.
func (h *Held) Value(k any) any {
	if k == (key{}) {
		return h
	}
	return h.Context.Value(k)
}

// Of returns the Held to which a call under ctx reports, or nil if it reports at once.
func Of(ctx context.Context) *Held {
	if ctx == nil {
		return nil
	}
	h, _ := ctx.Value(key{}).(*Held)
	return h
}

// Add holds a report, calls it, or drops it. A report must hold values of its own.
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

// Release passes the reports on, in order, on the caller's goroutine.
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

// Send calls f with e now, or adds it to the reports of the call under ctx.
// It is a function of its own so that reports at once allocate nothing.
func Send[E any](ctx context.Context, f func(E), e E) {
	if h := Of(ctx); h != nil {
		hold(h, f, e)
		return
	}
	f(e)
}

//go:noinline
func hold[E any](h *Held, f func(E), e E) { h.Add(func() { f(e) }) }
