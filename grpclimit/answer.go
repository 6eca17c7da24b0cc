package grpclimit

import (
	"context"
	"math"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/undecided"
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
		message := text.denied
		if e.Decision.Allowed {
			message, wait = text.delayed, e.Decision.Delay
		}
		answer := text.answer(message, i.spread(e.Request, wait))
		return finish(e, t, answer.status, answer.pushback, i.opts.OnDenied)
	case edge.Exceeds:
		text := i.textOf(&e.Decision.Limit)
		return finish(e, t, text.answer(text.exceeds, 0).status, never, i.opts.OnExceeds)
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
		t.set(pushbackTrailer, pushback)
	}
	return &refusal{answer, e.Err, e.Err != nil && e.Reason().ByClient()}
}

// undecided returns the answer to a call that could not be decided. It holds nothing of the
// error's text.
func (i *Interceptor) undecided(e *event) (answer *status.Status, pushback string) {
	switch e.Reason() {
	case undecided.Key:
		return status.New(i.opts.KeyCode, badKey), ""
	case undecided.Gone:
		return status.FromContextError(e.Request.Context().Err()), ""
	case undecided.Cost, undecided.Misconfigured:
		return undecidable, ""
	}
	answer = status.New(codes.Unavailable, "the rate limiter is not available")
	wait := i.spread(e.Request, e.Decision.RetryAfter)
	return retryLater(answer, wait), pushbackOf(wait)
}

const badKey = "the key that calls are limited by is missing or malformed"

var undecidable = status.New(codes.Internal, "the call could not be decided")

// gone is the answer to a call whose context has ended.
func gone(ctx context.Context) error {
	return &refusal{status: status.FromContextError(ctx.Err()), cause: ctx.Err(), byClient: true}
}

// retryLater returns the status with a RetryInfo, if the wait is known.
func retryLater(s *status.Status, wait time.Duration) *status.Status {
	if wait <= 0 {
		return s
	}
	ms := milliseconds(wait)
	info := &errdetails.RetryInfo{RetryDelay: &durationpb.Duration{
		Seconds: ms / 1000,
		Nanos:   int32(ms % 1000 * int64(time.Millisecond)),
	}}
	if with, err := s.WithDetails(info); err == nil {
		return with
	}
	return s // cannot happen: the message is well-formed, and the code is not OK
}

// milliseconds rounds up.
func milliseconds(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// pushbackTrailer tells a client's retry policy when to retry (gRFC A6).
const pushbackTrailer = "grpc-retry-pushback-ms"

// never tells a client not to retry.
const never = "-1"

// pushbackOf returns the trailer for a wait; "" if it is not known, which leaves the client
// to its own backoff. It is an int32: a client cannot be told of a longer wait than about
// 24 days, and must not come too early.
func pushbackOf(wait time.Duration) string {
	switch ms := milliseconds(wait); {
	case wait <= 0:
		return ""
	case ms > math.MaxInt32:
		return never
	default:
		return strconv.FormatInt(ms, 10)
	}
}
