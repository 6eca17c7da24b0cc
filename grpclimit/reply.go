package grpclimit

import (
	"sync"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// replyTo returns an answer in gRPC's form. Calls share one if a limit denies them for the same number of milliseconds.
func replyTo(a rpcstatus.Answer) *reply {
	if a.Limit == nil {
		return newReply(a)
	}
	last, _ := a.Limit.Last.Load().(*reply)
	if last == nil || rpcstatus.Milliseconds(last.answer.Wait) != rpcstatus.Milliseconds(a.Wait) || last.answer.Message != a.Message {
		last = newReply(a)
		a.Limit.Last.Store(last)
	}
	return last
}

// reply is an answer to refused calls, in gRPC's form.
type reply struct {
	refusal // a call's refusal without its own cause

	answer   rpcstatus.Answer
	once     sync.Once // sets the fields below
	pushback [1]string
	md       metadata.MD
}

func newReply(a rpcstatus.Answer) *reply {
	p := protos.Get().(*protoStatus)
	p.Code, p.Message = int32(a.Code), a.Message
	details, n := a.Details(&p.retry)
	for i := range n {
		p.any[i].TypeUrl, p.any[i].Value = details[i].URL, details[i].Value
		p.details[i] = &p.any[i]
	}
	p.Details = p.details[:n]
	made := &reply{refusal: refusal{status: status.FromProto(&p.Status)}, answer: a}
	protos.Put(p)
	return made
}

// trailer returns the answer's trailer, or nil if there is none. Callers must not change it.
func (r *reply) trailer() metadata.MD {
	r.once.Do(func() {
		if r.pushback[0] = r.answer.Pushback(); r.pushback[0] != "" {
			r.md = metadata.MD{rpcstatus.PushbackKey: r.pushback[:]}
		}
	})
	return r.md
}

// protoStatus holds a status, its message and its details in one allocation. [status.FromProto] copies it.
type protoStatus struct {
	spb.Status
	details [2]*anypb.Any
	any     [2]anypb.Any
	retry   [rpcstatus.RetryInfoSize]byte
}

var protos = sync.Pool{New: func() any { return new(protoStatus) }}
