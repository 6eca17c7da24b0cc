package grpclimit

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/weir-go/ratelimit/internal/edge"
)

// The trailers of Options.LimitTrailers.
const (
	policyKey = "ratelimit-policy"
	limitKey  = "ratelimit"
)

// trailers sets a call's trailers. They are sent with the status, so that nothing is sent
// before it.
type trailers struct {
	ctx      context.Context   // of a unary call
	stream   grpc.ServerStream // or of none
	announce bool              // announce the remaining budget; a message's decision does not
	inner    *context.Context  // of the handler of a unary call; nil if the trailers hold nothing for inner interceptors
	first    bool              // the decision is on a stream as it opens, or on its first message
}

// within returns the context for the handler.
func (t trailers) within(e *event) context.Context {
	if t.inner != nil {
		return *t.inner
	}
	return e.Request.Context()
}

// announces reports whether the trailers contain the remaining budget. The trailers of a served stream are sent when it ends: its budget at the
// opening is out of date by then.
func (t trailers) announces(o edge.Outcome) bool {
	return t.announce && (o == edge.Denied || o == edge.Exceeds || o == edge.Allowed && t.stream == nil)
}

// set adds the trailers that a function returns, which are not changed. Outside of a server it has
// no effect.
func (t trailers) set(md func() metadata.MD) {
	if t.stream != nil {
		t.stream.SetTrailer(md())
	} else if s := grpc.ServerTransportStreamFromContext(t.ctx); s != nil {
		_ = s.SetTrailer(md()) // fails if the call has ended
	}
}

// limits returns the trailers with the limit that has decided.
func (i *Interceptor) limits(e *event, t trailers) metadata.MD {
	policies, standing, inner := i.views.Fields(e.Request.Context(), &e.Decision, e.Outcome == edge.Exceeds)
	if policies == "" {
		return nil
	}
	if t.inner != nil {
		*t.inner = inner
	}
	md := metadata.MD{policyKey: {policies}}
	if standing != "" {
		md[limitKey] = []string{standing}
	}
	return md
}
