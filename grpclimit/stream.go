package grpclimit

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
)

func (i *Interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := callOf(ss, info)
	if i.core.Skips(c) {
		return handler(srv, ss)
	}
	e := i.core.Event(c)
	if !i.core.Settles && !i.opts.ChargeMessages {
		_, err := i.serve(&e, trailers{stream: ss, announce: true}, nil, false, func(ctx context.Context) (any, error) { return nil, handler(srv, within(ss, ctx)) })
		return err
	}
	s := &chargedStream{watchedStream: watchedStream{ServerStream: ss}, i: i, call: c}
	t := trailers{stream: ss, announce: true, first: true}
	_, err := i.serve(&e, t, &s.watchedStream, i.core.Settles, func(ctx context.Context) (any, error) {
		s.ServerStream = within(ss, ctx)
		return nil, s.serve(srv, handler)
	})
	return err
}

// within returns a stream with another context.
func within(ss grpc.ServerStream, ctx context.Context) grpc.ServerStream {
	if ctx == ss.Context() {
		return ss
	}
	return &streamWithin{ss, ctx}
}

// streamWithin is a stream whose context ends when its units have lapsed.
type streamWithin struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWithin) Context() context.Context { return s.ctx }

// waitForMessage changes the wait of a stream denied as it opens or at its first message. A retry costs
// another opening and the message. So the wait covers both. Otherwise the first retry would be denied.
func (i *Interceptor) waitForMessage(e *event) {
	if i.opts.ChargeMessages && i.opts.Cost == nil {
		i.core.WaitFor(e, 2)
	}
}

// callOf returns the Call for an opening stream.
func callOf(ss grpc.ServerStream, info *grpc.StreamServerInfo) *Call {
	return &Call{FullMethod: info.FullMethod, ClientStream: info.IsClientStream, ServerStream: info.IsServerStream, ctx: ss.Context()}
}

// chargedStream is a stream with charged messages.
type chargedStream struct {
	watchedStream
	i      *Interceptor
	call   *Call                 // the Call of the opening
	denied atomic.Pointer[error] // the error of the first denied message
	passed bool                  // whether a message has passed; only RecvMsg uses it
}

// serve calls the handler. If a message was denied, the stream does not end with OK.
func (s *chargedStream) serve(srv any, handler grpc.StreamHandler) error {
	err := handler(srv, s)
	if denied := s.denied.Load(); err == nil && denied != nil {
		return *denied
	}
	return err
}

// RecvMsg receives a message and charges it.
func (s *chargedStream) RecvMsg(m any) error {
	if denied := s.denied.Load(); denied != nil {
		return *denied
	}
	if err := s.watchedStream.RecvMsg(m); err != nil || !s.i.opts.ChargeMessages {
		return err
	}
	err := s.charge(m)
	if err != nil {
		s.denied.Store(&err)
	}
	s.passed = true
	return err
}

func (s *chargedStream) charge(m any) error {
	c := *s.call
	c.Request = m
	e := s.i.core.Event(&c)
	_, err := s.i.serve(&e, trailers{stream: s.ServerStream, first: !s.passed}, nil, false, func(context.Context) (any, error) { return nil, nil })
	if r, ok := err.(*refusal); ok {
		return &refusal{status: r.status, cause: r.cause, message: true, byClient: r.byClient}
	}
	return err
}
