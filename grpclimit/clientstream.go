package grpclimit

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/weir-go/ratelimit/internal/pace"
)

// StreamClientInterceptor returns an interceptor for [grpc.WithChainStreamInterceptor]. A stream waits before it is opened.
func (c *Client) StreamClientInterceptor() grpc.StreamClientInterceptor {
	c.mustBeMade()
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		call := newClientCall(ctx, cc, method, nil, desc)
		return c.holdOpen(call, desc.ServerStreams, func(waited time.Duration, more ...grpc.CallOption) (grpc.ClientStream, error) {
			if c.pacer == nil {
				return streamer(ctx, desc, cc, method, with(opts, more...)...)
			}
			return c.open(call, waited, desc.ServerStreams, func(f *flight) (grpc.ClientStream, error) {
				return streamer(ctx, desc, cc, method, with(opts, append(more, grpc.Trailer(&f.trailer), grpc.OnFinish(f.finish))...)...)
			})
		})
	}
}

// open opens a stream when its turn comes. The call has already waited for a part of MaxWait.
func (c *Client) open(call *Call, waited time.Duration, many bool, start func(*flight) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
	f := &flight{pacer: c.pacer, place: c.pacer.ArriveAfter(call.Context(), c.opts.Key(call), waited)}
	opened := false
	defer func() {
		if !opened { // also after a panic
			f.leave()
		}
	}()
	if err := c.pacer.Await(f.place, call); err != nil {
		return nil, unsent(call, err)
	}
	s, err := start(f)
	if err != nil {
		f.finish(err)
		return nil, err
	}
	opened = true
	return &pacedStream{s, f, many}, nil
}

// flight is a stream, before or after it is opened. It holds its place until it ends.
type flight struct {
	pacer   *pace.Pacer[*Call]
	place   *pace.Place
	trailer metadata.MD // set when the stream has ended
	phase   atomic.Int32
}

// A flight's phases, in order.
const (
	phaseOpened int32 = iota
	phaseServed       // the server has sent headers or a message
	phaseEnded
)

// serve records that headers or a message came: the stream is not denied.
func (f *flight) serve() {
	if f.phase.CompareAndSwap(phaseOpened, phaseServed) {
		f.pacer.Learn(f.place, pace.Advice{Answered: true}, time.Now())
	}
}

// finish is called by gRPC when the stream has ended in any way. Its trailer is set by then.
func (f *flight) finish(err error) { f.end(err, f.trailer) }

// end records the stream's end. Only the first end counts.
func (f *flight) end(err error, trailer metadata.MD) {
	phase := f.phase.Swap(phaseEnded)
	if phase == phaseEnded {
		return
	}
	if a := answerOf(err, nil, trailer); phase == phaseOpened || a.Refused || a.Budgets != nil {
		f.pacer.Learn(f.place, a.Advice, time.Now())
	}
	f.pacer.Leave(f.place)
}

// leave ends a flight whose outcome is unknown.
func (f *flight) leave() {
	if f.phase.Swap(phaseEnded) != phaseEnded {
		f.pacer.Leave(f.place)
	}
}

// pacedStream reports to its flight when messages come and when the stream ends.
type pacedStream struct {
	grpc.ClientStream
	flight *flight
	many   bool // whether the server may send more than one message
}

// RecvMsg receives a message. It also records the stream's end, because OnFinish
// is not called if the stream is not gRPC's own or an interceptor drops options.
func (s *pacedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case err == nil && s.many:
		s.flight.serve()
	case err == nil || errors.Is(err, io.EOF):
		s.flight.end(nil, s.Trailer())
	default:
		s.flight.end(err, s.Trailer())
	}
	return err
}

// Header returns the stream's headers. A denied stream has none.
func (s *pacedStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if err == nil && len(md) > 0 {
		s.flight.serve()
	}
	return md, err
}
