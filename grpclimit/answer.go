package grpclimit

import (
	"context"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// refusal is the error that answers a call. Interceptors around this one can tell what
// led to it with errors.Is.
type refusal struct {
	status   *status.Status
	cause    error // nil for a denial
	byClient bool  // an Interceptor around this one must not take it for the server's fault
}

func (r *refusal) Error() string              { return r.status.Err().Error() }
func (r *refusal) GRPCStatus() *status.Status { return r.status }
func (r *refusal) Unwrap() error              { return r.cause }

// refuse returns the answer to a call that may not be served.
func (i *Interceptor) refuse(e *event, t trailers) error {
	switch e.Outcome {
	case edge.Denied:
		text, wait := i.textOf(&e.Decision.Limit), e.Decision.RetryAfter
		message := text.Denied
		if e.Decision.Allowed {
			message, wait = text.Delayed, e.Decision.Delay
		}
		answer := text.answer(message, i.core.Spread(e.Request, wait))
		return finish(e, t, answer.status, answer.pushback, i.opts.OnDenied)
	case edge.Exceeds:
		text := i.textOf(&e.Decision.Limit)
		return finish(e, t, text.answer(text.Exceeds, 0).status, "-1", i.opts.OnExceeds)
	}
	answer, pushback := i.undecided(e)
	return finish(e, t, answer, pushback, i.opts.OnError)
}

// finish gives the caller's function its say, and sets the trailer.
func finish(e *event, t trailers, answer *status.Status, pushback string, custom func(Event, *status.Status) *status.Status) error {
	if custom != nil {
		if other := custom(public(*e), answer); other.Code() != codes.OK {
			answer = other
		}
	}
	if pushback != "" {
		t.set(rpcstatus.PushbackKey, pushback)
	}
	return &refusal{answer, e.Err, e.Err != nil && e.Reason().ByClient()}
}

// undecided returns the answer to a call that could not be decided. It holds nothing of the
// error's text.
func (i *Interceptor) undecided(e *event) (answer *status.Status, pushback string) {
	return statusOf(rpcstatus.Undecided(e.Request.Context(), e.Reason(), rpcstatus.Code(i.opts.KeyCode), i.core.Spread(e.Request, e.Decision.RetryAfter)))
}

// gone is the answer to a call whose context has ended.
func gone(ctx context.Context) error {
	answer, _ := statusOf(rpcstatus.Gone(ctx))
	return &refusal{status: answer, cause: ctx.Err(), byClient: true}
}

// statusOf returns an answer as gRPC has it, and the pushback that goes with it, if any.
func statusOf(a rpcstatus.Answer) (s *status.Status, pushback string) {
	p := &spb.Status{Code: int32(a.Code), Message: a.Message}
	details, n := a.Details(new([rpcstatus.RetryInfoSize]byte))
	for _, d := range details[:n] {
		p.Details = append(p.Details, &anypb.Any{TypeUrl: d.URL, Value: d.Value})
	}
	return status.FromProto(p), a.Pushback()
}
