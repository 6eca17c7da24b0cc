package grpclimit

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/weir-go/ratelimit/internal/edge"
)

// The trailers' keys for Options.LimitTrailers.
const (
	policyKey = "ratelimit-policy"
	limitKey  = "ratelimit"
)

// trailers sets a call's trailers. gRPC sends them with the status, so no headers are sent earlier.
type trailers struct {
	ctx      context.Context   // the context of a unary call
	stream   grpc.ServerStream // the stream; nil for a unary call
	announce bool              // whether to announce the remaining budget; false for a decision on a message
	inner    *context.Context  // the context for a unary call's handler; nil if the trailers are not passed to inner interceptors
	first    bool              // the decision is on a stream's opening or on its first message
}

// within returns the context for the handler.
func (t trailers) within(e *event) context.Context {
	if t.inner != nil {
		return *t.inner
	}
	return e.Request.Context()
}

// announces reports whether the trailers contain the remaining budget. A served stream
// sends its trailers when it ends. The budget at its opening is out of date by then.
func (t trailers) announces(o edge.Outcome) bool {
	return t.announce && (o == edge.Denied || o == edge.Exceeds || o == edge.Allowed && t.stream == nil)
}

// set adds md's trailers, and does not change them. Outside of a server it does nothing.
func (t trailers) set(md func() metadata.MD) {
	if t.stream != nil {
		t.stream.SetTrailer(md())
	} else if s := grpc.ServerTransportStreamFromContext(t.ctx); s != nil {
		_ = s.SetTrailer(md()) // after an error the call has ended
	}
}

// limits returns the trailers for the deciding limit.
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
