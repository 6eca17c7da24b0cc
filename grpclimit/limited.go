package grpclimit

import (
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-go/ratelimit"
)

// limitText is what answers say of a limit. It depends on the limit only, and is made when the
// limit denies for the first time.
type limitText struct {
	denied, delayed, exceeds string // messages
	quota                    *anypb.Any
	last                     atomic.Pointer[limitAnswer]
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
		text = newLimitText(limit)
		i.texts.Add(*limit, text)
	}
	return text
}

func newLimitText(limit *ratelimit.Limit) *limitText {
	name := limit.Name
	if name == "" {
		name = "default"
	}
	quota, _ := anypb.New(&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{ // well-formed
		Subject:     name,
		Description: describe(limit),
		QuotaId:     name,
		QuotaValue:  int64(limit.Capacity()),
	}}})
	return &limitText{
		denied:  "rate limit exceeded: " + name,
		delayed: "the rate limit delays the call beyond its deadline: " + name,
		exceeds: "the call costs more than its limit ever allows: do not retry: " + name,
		quota:   quota,
	}
}

// describe says what a limit allows, without its name. It is empty if that is not known.
func describe(limit *ratelimit.Limit) string {
	switch limit.Algorithm {
	case ratelimit.AlgorithmBlocked:
		return "blocked"
	case 0, ratelimit.AlgorithmUnlimited:
		return ""
	}
	return fmt.Sprintf("%d per %v, %d at once", limit.Rate.Units, limit.Rate.Per, limit.Capacity())
}

// answer is RESOURCE_EXHAUSTED with the message, which names the limit. It tells when to retry
// if the wait is known.
func (t *limitText) answer(message string, wait time.Duration) *limitAnswer {
	ms := max(0, milliseconds(wait))
	if last := t.last.Load(); last != nil && last.ms == ms && last.message == message {
		return last
	}
	s := new(struct { // one allocation; FromProto copies it
		spb.Status
		retry   anypb.Any
		details [2]*anypb.Any
		value   [24]byte
	})
	s.Code, s.Message = int32(codes.ResourceExhausted), message
	s.Details = s.details[:0]
	if ms > 0 {
		s.retry.TypeUrl, s.retry.Value = retryInfoURL, appendRetryInfo(s.value[:0], ms)
		s.Details = append(s.Details, &s.retry)
	}
	s.Details = append(s.Details, t.quota)
	a := &limitAnswer{message: message, ms: ms, status: status.FromProto(&s.Status), pushback: pushbackOf(wait)}
	t.last.Store(a)
	return a
}

const retryInfoURL = "type.googleapis.com/google.rpc.RetryInfo"

// appendRetryInfo encodes a RetryInfo, whose only field is a Duration.
func appendRetryInfo(b []byte, ms int64) []byte {
	seconds, nanos := uint64(ms/1000), uint64(ms%1000)*uint64(time.Millisecond)
	size := 0
	if seconds > 0 {
		size += 1 + protowire.SizeVarint(seconds)
	}
	if nanos > 0 {
		size += 1 + protowire.SizeVarint(nanos)
	}
	b = protowire.AppendTag(b, 1, protowire.BytesType) // retry_delay
	b = protowire.AppendVarint(b, uint64(size))
	if seconds > 0 {
		b = protowire.AppendTag(b, 1, protowire.VarintType)
		b = protowire.AppendVarint(b, seconds)
	}
	if nanos > 0 {
		b = protowire.AppendTag(b, 2, protowire.VarintType)
		b = protowire.AppendVarint(b, nanos)
	}
	return b
}
