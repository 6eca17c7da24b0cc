package inflight

import (
	"cmp"
	"errors"
)

// [Protect]'s defaults.
const (
	protectTotal   = 1000
	protectQueue   = 100
	protectWaiting = 1000
)

// Protect returns a limiter for one backend whose capacity is unknown, for example a database.
// All keys share one limit. It adapts as [Learn] does, up to Options.Total, which defaults to
// 1000. Keys share the limit by Options.Weight, and Options.Priority divides them into levels.
//
// Callers wait in queues while they can still be served in time. Options.MaxQueue, the maximum for each key, defaults
// to 100, and Options.MaxWaiting, the maximum over all keys, to 1000. Protect returns an error if Options.Adaptive or
// Options.Shared is set, or another option is invalid.
//
// For LearnOptions, or for one limit per key, use [New] with [Learn].
func Protect[K comparable](opts *Options[K]) (*Limiter[K], error) {
	var o Options[K]
	if opts != nil {
		o = *opts
	}
	switch {
	case o.Adaptive != nil:
		return nil, errors.New("inflight: Protect sets the limit over all keys, and Options.Adaptive is set: use New")
	case o.Shared != nil:
		return nil, errors.New("inflight: Protect sets Options.Shared, and it is set: use New")
	}
	o.Shared = Learn(nil)
	o.Total = cmp.Or(o.Total, protectTotal)
	o.MaxQueue = cmp.Or(o.MaxQueue, protectQueue)
	o.MaxWaiting = cmp.Or(o.MaxWaiting, protectWaiting)
	return New(max(1, o.Total), &o)
}
