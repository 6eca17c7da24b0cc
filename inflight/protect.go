package inflight

import (
	"cmp"
	"errors"
)

// The defaults of Protect.
const (
	protectTotal   = 1000
	protectQueue   = 100
	protectWaiting = 1000
)

// Protect returns a limiter for one backend of unknown capacity, such as a server behind it or a database. All keys share one limit, which
// adapts as [Learn] does, up to Options.Total, 1000 by default. Callers wait in queues as long as they can still be served in time: 100 for each
// key, and 1000 in all, unless Options.MaxQueue and Options.MaxWaiting are set. Keys share the limit by Options.Weight, and Options.Priority
// divides them into levels. It is an error if Options.Adaptive or Options.Shared is set, or another option is invalid.
//
// Use [New] with [Learn] for LearnOptions, or for one limit per key.
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
