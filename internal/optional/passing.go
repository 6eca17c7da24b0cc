package optional

import "context"

// Passing is a context for a Reserve whose reservation is either given back within the call that makes it, or never
// settled. It spares the limiter the record of an open reservation. Other limiters ignore it.
type Passing struct{ context.Context }

// From returns p for a context. A context that is already a Passing stays itself.
func (p *Passing) From(ctx context.Context) context.Context {
	if ctx == nil {
		ctx = context.Background()
	} else if IsPassing(ctx) {
		return ctx
	}
	p.Context = ctx
	return p
}

// IsPassing reports whether a context is a [Passing].
func IsPassing(ctx context.Context) bool {
	_, ok := ctx.(*Passing)
	return ok
}
