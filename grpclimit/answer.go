package grpclimit

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// refusal is a refused call's error. Outer interceptors can find its cause with errors.Is.
type refusal struct {
	status   *status.Status
	cause    error // nil for a denial
	message  bool  // a refused message ends a stream whose opening was allowed
	byClient bool  // the client caused the refusal, so an outer Interceptor must not count it as a server error
}

func (r *refusal) Error() string              { return r.status.Err().Error() }
func (r *refusal) GRPCStatus() *status.Status { return r.status }
func (r *refusal) Unwrap() error              { return r.cause }

// refuse returns a refused call's error.
func (i *Interceptor) refuse(e *event, t trailers) error {
	r, custom := replyTo(i.core.Answer(e, rpcstatus.Code(i.opts.KeyCode))), i.opts.OnError
	switch e.Outcome {
	case edge.Denied:
		custom = i.opts.OnDenied
	case edge.Exceeds:
		custom = i.opts.OnExceeds
	}
	t.set(r.trailer)
	answer := r.status
	if custom != nil {
		if other := custom(public(*e), answer); other.Code() != codes.OK {
			answer = other
		}
	}
	if e.Err == nil && answer == r.status {
		return &r.refusal
	}
	return &refusal{status: answer, cause: e.Err, byClient: e.Err != nil && e.Cause().ByClient()}
}

// gone returns the error for a call whose context has ended.
func gone(ctx context.Context) error {
	return &refusal{status: newReply(rpcstatus.Gone(ctx)).status, cause: ctx.Err(), byClient: true}
}
