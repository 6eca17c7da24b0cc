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

// set adds trailers, which are not changed. It has no effect outside of a server.
func (t trailers) set(md metadata.MD) {
	if len(md) == 0 {
		return
	}
	if t.stream != nil {
		t.stream.SetTrailer(md)
	} else if s := grpc.ServerTransportStreamFromContext(t.ctx); s != nil {
		_ = s.SetTrailer(md) // fails if the call has ended
	}
}
