package grpclimit

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// trailers sets a call's trailers. They are sent with the status, so that nothing is sent
// before it.
type trailers struct {
	ctx    context.Context   // of a unary call
	stream grpc.ServerStream // or of none
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
