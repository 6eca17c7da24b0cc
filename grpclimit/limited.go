package grpclimit

import (
	"sync/atomic"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// limitText is what answers say of a limit, and the last of them. It is made when the limit denies
// for the first time.
type limitText struct {
	rpcstatus.LimitText
	last atomic.Pointer[limitAnswer]
}

// limitAnswer is an answer to calls that a limit denies. A status is never changed, so all
// calls that have to wait for the same millisecond can have one.
type limitAnswer struct {
	message  string
	ms       int64 // the wait; 0 if none is told
	status   *status.Status
	pushback string
}

// textOf returns what answers say of a limit.
func (i *Interceptor) textOf(limit *ratelimit.Limit) *limitText {
	text, ok := i.texts.Find(*limit)
	if !ok {
		text = &limitText{LimitText: rpcstatus.TextOf(limit)}
		i.texts.Add(*limit, text)
	}
	return text
}

// answer is RESOURCE_EXHAUSTED with the message, which names the limit. It tells when to retry
// if the wait is known.
func (t *limitText) answer(message string, wait time.Duration) *limitAnswer {
	told := rpcstatus.Answer{Code: rpcstatus.ResourceExhausted, Message: message, Wait: max(0, wait), Quota: t.Quota}
	ms := rpcstatus.Milliseconds(told.Wait)
	if last := t.last.Load(); last != nil && last.ms == ms && last.message == message {
		return last
	}
	s := new(struct { // one allocation; FromProto copies it
		spb.Status
		details [2]*anypb.Any
		any     [2]anypb.Any
		retry   [rpcstatus.RetryInfoSize]byte
	})
	s.Code, s.Message = int32(told.Code), message
	details, n := told.Details(&s.retry)
	for i := range n {
		s.any[i].TypeUrl, s.any[i].Value = details[i].URL, details[i].Value
		s.details[i] = &s.any[i]
	}
	s.Details = s.details[:n]
	a := &limitAnswer{message: message, ms: ms, status: status.FromProto(&s.Status), pushback: told.Pushback()}
	t.last.Store(a)
	return a
}
