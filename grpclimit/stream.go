package grpclimit

import (
	"errors"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"
)

func (i *Interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := callOf(ss, info)
	if i.skips(c) {
		return handler(srv, ss)
	}
	e, t := Event{Call: c, Cost: i.cost(c)}, trailers{stream: ss}
	if i.reserver == nil && !i.opts.ChargeMessages {
		i.take(&e)
		if err := i.pass(&e, t); err != nil {
			return err
		}
		return handler(srv, ss)
	}
	s := &watchedStream{ServerStream: ss, i: i, call: c}
	if i.reserver != nil {
		return i.settled(&e, t, &s.failed, func() error { return s.serve(srv, handler) })
	}
	i.take(&e)
	if err := i.pass(&e, t); err != nil {
		return err
	}
	return s.serve(srv, handler)
}

// callOf returns a stream as it opens.
func callOf(ss grpc.ServerStream, info *grpc.StreamServerInfo) *Call {
	return &Call{FullMethod: info.FullMethod, ClientStream: info.IsClientStream, ServerStream: info.IsServerStream, ctx: ss.Context()}
}

// watchedStream is a stream that charges its messages, and notes whether the client failed
// to send one. One goroutine may receive while others send, as gRPC has it.
type watchedStream struct {
	grpc.ServerStream
	i      *Interceptor
	call   *Call // as the stream opened
	failed atomic.Bool
	denied atomic.Pointer[error] // of the first message that was denied
}

// serve calls the handler. A stream of which a message was denied does not end with OK.
func (s *watchedStream) serve(srv any, handler grpc.StreamHandler) error {
	err := handler(srv, s)
	if denied := s.denied.Load(); err == nil && denied != nil {
		return *denied
	}
	return err
}

// RecvMsg receives a message and charges it.
func (s *watchedStream) RecvMsg(m any) error {
	if denied := s.denied.Load(); denied != nil {
		return *denied
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		s.note(err)
		return err
	}
	if !s.i.opts.ChargeMessages {
		return nil
	}
	err := s.charge(m)
	if err != nil {
		s.denied.Store(&err)
	}
	return err
}

// note takes note of a message that could not be received. An Interceptor outside of this
// one, which denies a message, is not the client's failure to send.
func (s *watchedStream) note(err error) {
	if denial := (*refusal)(nil); err != io.EOF && !errors.As(err, &denial) {
		s.failed.Store(true)
	}
}

func (s *watchedStream) charge(m any) error {
	c := *s.call
	c.Request = m
	e := Event{Call: &c, Cost: s.i.cost(&c)}
	s.i.take(&e)
	return s.i.pass(&e, trailers{stream: s.ServerStream})
}
