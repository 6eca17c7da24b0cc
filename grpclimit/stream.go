package grpclimit

import (
	"sync/atomic"

	"google.golang.org/grpc"
)

func (i *Interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := callOf(ss, info)
	if i.skips(c) {
		return handler(srv, ss)
	}
	e, t := Event{Call: c, Cost: i.cost(c)}, trailers{stream: ss}
	if i.opts.Settle == nil && !i.opts.ChargeMessages {
		if err := i.enforce(&e, t, i.decide(&e, i.reserves.calls)); err != nil {
			return err
		}
		return handler(srv, ss)
	}
	s := &chargedStream{watchedStream: watchedStream{ServerStream: ss}, i: i, call: c}
	res := i.decide(&e, i.reserves.openings)
	i.waitForMessage(&e)
	if i.opts.Settle != nil {
		return i.settled(&e, t, res, s, func() error { return s.serve(srv, handler) })
	}
	if err := i.enforce(&e, t, res); err != nil {
		return err
	}
	err := s.serve(srv, handler)
	if s.wasted(err) {
		i.settle(c, res, 0)
	}
	return err
}

// waitForMessage makes a stream that is denied as it opens wait until its first message
// passes too: it would be denied at its first retry otherwise.
func (i *Interceptor) waitForMessage(e *Event) {
	if !i.opts.ChargeMessages || !i.reserves.openings || i.opts.Cost != nil || e.Outcome != OutcomeDenied || e.Decision.Allowed {
		return
	}
	both, err := i.reserver.Reserve(e.Call.Context(), e.Call, 2*e.Cost, i.maxDelay)
	if err == nil && !both.Allowed {
		e.Decision.RetryAfter = max(e.Decision.RetryAfter, both.RetryAfter)
	}
	i.settle(e.Call, both, 0) // if it has just become free
}

// callOf returns a stream as it opens.
func callOf(ss grpc.ServerStream, info *grpc.StreamServerInfo) *Call {
	return &Call{FullMethod: info.FullMethod, ClientStream: info.IsClientStream, ServerStream: info.IsServerStream, ctx: ss.Context()}
}

// chargedStream is a stream that charges its messages.
type chargedStream struct {
	watchedStream
	i       *Interceptor
	call    *Call                 // as the stream opened
	denied  atomic.Pointer[error] // of the first message that was denied
	allowed atomic.Bool           // at least one message
}

// watched returns the stream as it is watched: nil for no stream.
func (s *chargedStream) watched() *watchedStream {
	if s == nil {
		return nil
	}
	return &s.watchedStream
}

// serve calls the handler. A stream of which a message was denied does not end with OK.
func (s *chargedStream) serve(srv any, handler grpc.StreamHandler) error {
	err := handler(srv, s)
	if denied := s.denied.Load(); err == nil && denied != nil {
		return *denied
	}
	return err
}

// wasted reports whether the opening of the stream has to be given back: the first message
// was denied, the stream ends because of that, and the client has got nothing. If the opening
// stayed charged, the client's retry would open a second stream with the budget that its
// message has waited for.
func (s *chargedStream) wasted(err error) bool {
	denied := s.denied.Load()
	return denied != nil && !s.allowed.Load() && !s.sent.Load() && codeOf(err) == codeOf(*denied)
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
	} else {
		s.allowed.Store(true)
	}
	return err
}

func (s *chargedStream) charge(m any) error {
	c := *s.call
	c.Request = m
	e := Event{Call: &c, Cost: s.i.cost(&c)}
	return s.i.enforce(&e, trailers{stream: s.ServerStream}, s.i.decide(&e, s.i.reserves.messages))
}
