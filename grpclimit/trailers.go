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

// set adds one trailer. It has no effect outside of a server.
func (t trailers) set(key, value string) {
	md := metadata.MD{key: {value}}
	if t.stream != nil {
		t.stream.SetTrailer(md)
		return
	}
	_ = grpc.SetTrailer(t.ctx, md)
}
