package grpclimit

import (
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// outcome returns a call's outcome for an adaptive limit.
func (c *Client) outcome(call *Call, err error) inflight.Outcome {
	usual := responseOutcome(call, err)
	if c.opts.Outcome == nil {
		return usual
	}
	return c.opts.Outcome(call, err, usual)
}

func responseOutcome(c *Call, err error) inflight.Outcome {
	if outcome.CauseOf(err).Refused() {
		return inflight.Ignored
	}
	return edge.OutcomeOfCode(c.Context(), rpcstatus.Code(codeOf(err)), c.streaming())
}

// hold sends a unary call. If the Client has permits, the call holds one.
func (c *Client) hold(call *Call, send func(waited time.Duration) error) error {
	if c.permits == nil {
		return send(0)
	}
	permit, waited, err := c.permits.Acquire(call.Context(), c.opts.Key(call))
	if err != nil {
		return unsent(call, err)
	}
	defer permit.Done(inflight.Ignored) // for a panic; after the Done below it does nothing
	if c.pacer == nil {
		c.permits.Depart()
		defer c.permits.Land()
	}
	err = send(waited)
	permit.Done(c.outcome(call, err))
	return err
}

// holdOpen opens a stream. If the Client has permits, the stream holds one until it ends.
func (c *Client) holdOpen(call *Call, many bool, open func(waited time.Duration, more ...grpc.CallOption) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
	if c.permits == nil {
		return open(0)
	}
	permit, waited, err := c.permits.Acquire(call.Context(), c.opts.Key(call))
	if err != nil {
		return nil, unsent(call, err)
	}
	if c.opts.Outcome == nil { // otherwise Outcome decides at the end
		permit.Ignore()
	}
	if c.pacer == nil {
		c.permits.Depart()
	}
	var once sync.Once
	end := func(report func()) {
		once.Do(func() {
			defer permit.Done(inflight.Ignored) // for a panic of Outcome
			if c.pacer == nil {
				c.permits.Land()
			}
			report()
		})
	}
	finish := func(err error) { end(func() { permit.Done(c.outcome(call, err)) }) }
	opened := false
	defer func() {
		if !opened {
			end(func() {}) // for a panic; after finish it does nothing
		}
	}()
	s, err := open(waited, grpc.OnFinish(finish))
	if err != nil {
		finish(err)
		return nil, err
	}
	opened = true
	return &heldStream{s, finish, many}, nil
}

// heldStream is a stream with a permit. It also records its end, because OnFinish
// is not called if the stream is not gRPC's own or an interceptor drops options.
type heldStream struct {
	grpc.ClientStream
	end  func(error)
	many bool // whether the server may send more than one message
}

// RecvMsg receives a message, and records the stream's end.
func (s *heldStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case err == nil && s.many:
	case err == nil || errors.Is(err, io.EOF):
		s.end(nil)
	default:
		s.end(err)
	}
	return err
}
