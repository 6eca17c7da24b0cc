package grpclimit

import (
	"sync/atomic"

	"google.golang.org/grpc"
)

func (i *Interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := callOf(ss, info)
	if i.core.Skips(c) {
		return handler(srv, ss)
	}
	e, t := i.core.Event(c), trailers{stream: ss, tell: true}
	res := i.core.Decide(&e)
	if i.opts.SettleResponse == nil && !i.opts.ChargeMessages {
		if err := i.enforce(&e, t, res); err != nil {
			return err
		}
		return handler(srv, ss)
	}
	s := &chargedStream{watchedStream: watchedStream{ServerStream: ss}, i: i, call: c}
	i.waitForMessage(&e)
	if i.opts.SettleResponse != nil {
		_, err := i.settled(&e, t, res, &s.watchedStream, func() (any, error) { return nil, s.serve(srv, handler) })
		return err
	}
	if err := i.enforce(&e, t, res); err != nil {
		return err
	}
	return s.serve(srv, handler)
}

// waitForMessage makes a stream that is denied, as it opens or at its first message, wait
// until both pass. A client that retries opens the stream again, and has to pay for that
// again: so it would be denied at its first retry otherwise.
func (i *Interceptor) waitForMessage(e *event) {
	if i.opts.ChargeMessages && i.opts.Cost == nil {
		i.core.WaitFor(e, 2)
	}
}

// callOf returns a stream as it opens.
func callOf(ss grpc.ServerStream, info *grpc.StreamServerInfo) *Call {
	return &Call{FullMethod: info.FullMethod, ClientStream: info.IsClientStream, ServerStream: info.IsServerStream, ctx: ss.Context()}
}

// chargedStream is a stream that charges its messages.
type chargedStream struct {
	watchedStream
	i      *Interceptor
	call   *Call                 // as the stream opened
	denied atomic.Pointer[error] // of the first message that was denied
	passed bool                  // a message has; only RecvMsg uses this
}

// serve calls the handler. A stream of which a message was denied does not end with OK.
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
	res := s.i.core.DecideUnsettled(&e)
	if !s.passed {
		s.i.waitForMessage(&e)
	}
	return s.i.enforce(&e, trailers{stream: s.ServerStream}, res)
}
