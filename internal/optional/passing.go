package optional

import "context"

// Passing is the context of a Reserve whose reservation is either given back before the caller returns,
// or never settled. So the limiter need not record an open reservation. Some limiters ignore it.
type Passing struct{ context.Context }

// From makes p a context derived from ctx, and returns p. If ctx is already a Passing, From returns ctx.
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
