package grpclimit

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// watchedStream is a stream that records failures that the client has caused: it failed to send a message, or to take one. One goroutine
// may receive while others send, as gRPC has it.
type watchedStream struct {
	grpc.ServerStream
	ctx    context.Context // of the stream, or nil for the context of ServerStream
	failed atomic.Bool

	mu       sync.Mutex // guards the fields below
	messages int        // that were sent
	last     any        // of these
}

// Context returns the stream's context.
func (s *watchedStream) Context() context.Context {
	if s.ctx == nil {
		return s.ServerStream.Context()
	}
	return s.ctx
}

// sent returns how many messages were sent, and the last one.
func (s *watchedStream) sent() (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages, s.last
}

// RecvMsg receives a message.
func (s *watchedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil {
		s.noteReceiving(err)
	}
	return err
}

// noteReceiving records a message that could not be received. An outer Interceptor, which denies a message, is not the client's failure to
// send.
func (s *watchedStream) noteReceiving(err error) {
	if denial := (*refusal)(nil); err != io.EOF && !errors.As(err, &denial) {
		s.failed.Store(true)
	}
}

// SendMsg sends a message.
func (s *watchedStream) SendMsg(m any) error {
	err := s.ServerStream.SendMsg(m)
	if err != nil {
		s.noteSending(err)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages++
	s.last = m
	return nil
}

// SendHeader sends the header.
func (s *watchedStream) SendHeader(md metadata.MD) error {
	err := s.ServerStream.SendHeader(md)
	if err != nil {
		s.noteSending(err)
	}
	return err
}

// noteSending records a message that could not be sent. A client that closes its connection makes the sending fail with Unavailable before
// the stream's context ends. A message that cannot be encoded, or is too large, is the server's own fault.
func (s *watchedStream) noteSending(err error) {
	if code := codeOf(err); code != codes.Internal && code != codes.ResourceExhausted {
		s.failed.Store(true)
	}
}

// blame returns the code of a call by which it is settled: no server error if the client
// has caused it.
func (s *watchedStream) blame(code codes.Code, err error) codes.Code {
	if serverFault(code) && (s != nil && s.failed.Load() || causedByClient(err)) {
		return codes.InvalidArgument
	}
	return code
}
