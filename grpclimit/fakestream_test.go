package grpclimit_test

import (
	"context"
	"io"

	"google.golang.org/grpc/metadata"
)

// fakeStream is a server's stream whose client sends the prepared messages.
type fakeStream struct {
	ctx      context.Context
	received []error // the results of RecvMsg, one after the other; then EOF
	trailer  metadata.MD
	sent     int
	sending  error // the result of SendMsg
}

func (s *fakeStream) Context() context.Context {
	if s.ctx == nil {
		return context.Background()
	}
	return s.ctx
}

func (s *fakeStream) RecvMsg(any) error {
	if len(s.received) == 0 {
		return io.EOF
	}
	err := s.received[0]
	s.received = s.received[1:]
	return err
}

func (s *fakeStream) SendMsg(any) error            { s.sent++; return s.sending }
func (s *fakeStream) SetTrailer(md metadata.MD)    { s.trailer = metadata.Join(s.trailer, md) }
func (s *fakeStream) SetHeader(metadata.MD) error  { return nil }
func (s *fakeStream) SendHeader(metadata.MD) error { return nil }
