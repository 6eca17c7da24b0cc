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

// watchedStream is a stream. It records whether its client has failed to send or to
// receive a message. As gRPC permits, one goroutine may receive while others send.
type watchedStream struct {
	grpc.ServerStream
	ctx    context.Context // the context for the handler; nil for ServerStream's
	failed atomic.Bool

	mu       sync.Mutex // guards the fields below
	messages int        // messages sent
	last     any        // the last message sent
}

// Context returns the stream's context.
func (s *watchedStream) Context() context.Context {
	if s.ctx == nil {
		return s.ServerStream.Context()
	}
	return s.ctx
}

// sent counts the sent messages, and returns the last one.
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

// noteReceiving records a failure to receive a message. If an outer
// Interceptor has denied the message, the client has not failed.
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

// noteSending records a failure to send a message. If a client closes its connection, sending fails with Unavailable
// before the stream's context ends. If a message cannot be encoded or is too large, the server is at fault.
func (s *watchedStream) noteSending(err error) {
	if code := codeOf(err); code != codes.Internal && code != codes.ResourceExhausted {
		s.failed.Store(true)
	}
}

// blame returns the code to settle a call with. If the client has caused a server error, blame returns another code.
func (s *watchedStream) blame(code codes.Code, err error) codes.Code {
	if serverFault(code) && (s != nil && s.failed.Load() || causedByClient(err)) {
		return codes.InvalidArgument
	}
	return code
}
