// Package rpcstatus describes a call's refusal in the terms of gRPC: the code, the message, a retry's time, and the exhausted
// quota. It needs no protobuf library, so httplimit can use it to answer gRPC and Connect calls. grpclimit uses it, too.
package rpcstatus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// Code is a status code of gRPC.
type Code uint32

// The codes in answers: refusals, errors for a bad key, and signs of load.
const (
	Canceled          Code = 1
	Unknown           Code = 2
	InvalidArgument   Code = 3
	DeadlineExceeded  Code = 4
	PermissionDenied  Code = 7
	ResourceExhausted Code = 8
	Internal          Code = 13
	Unavailable       Code = 14
	DataLoss          Code = 15
	Unauthenticated   Code = 16
)

// Answer is the answer to a refused call.
type Answer struct {
	Code    Code
	Message string
	Wait    time.Duration // the time until a retry; 0 if not known
	Never   bool          // whether a retry can never pass
	Limit   *LimitText    // the denying limit, or nil
}

// PushbackKey is the trailer with a retry's time, for a client's retry policy (gRFC A6).
const PushbackKey = "grpc-retry-pushback-ms"

// Pushback returns the trailer's value, or "" if no wait is known. Then the client uses
// its own backoff. The value is an int32, and so at most about 24 days. For a longer wait,
// and if a retry can never pass, Pushback returns "-1", and the client does not retry.
func (a *Answer) Pushback() string {
	switch ms := Milliseconds(a.Wait); {
	case a.Never || ms > math.MaxInt32:
		return "-1"
	case a.Wait <= 0:
		return ""
	default:
		return strconv.FormatInt(ms, 10)
	}
}

// Milliseconds converts a time to milliseconds, rounded up.
func Milliseconds(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// LimitText is a limit's description in answers. It depends only on the limit.
type LimitText struct {
	Denied, Delayed, Exceeds, Blocked string // the messages
	Quota                             []byte // an encoded google.rpc.QuotaFailure

	// Last is for the code that builds answers. It stores the last
	// answer for this limit, in the form of the protocol's library.
	Last atomic.Value
}

// TextOf returns a limit's description in answers.
func TextOf(limit *ratelimit.Limit) *LimitText {
	name := limit.Name
	if name == "" {
		name = "default"
	}
	return &LimitText{
		Denied:  "rate limit exceeded: " + name,
		Delayed: "the rate limit delays the call beyond its deadline: " + name,
		Exceeds: Calls.Exceeds + ": " + name,
		Blocked: Calls.Blocked + ": " + name,
		Quota:   quotaFailure(name, describe(limit), uint64(limit.Capacity())),
	}
}

// describe returns a limit's figures as text, without its name. It returns "" if the limit is not known.
func describe(limit *ratelimit.Limit) string {
	switch limit.Algorithm {
	case ratelimit.AlgorithmBlocked:
		return "blocked"
	case 0, ratelimit.AlgorithmUnlimited:
		return ""
	}
	if limit.Algorithm == ratelimit.AlgorithmCalendar {
		return fmt.Sprintf("%d per %v", limit.Rate.Units, limit.Period)
	}
	return fmt.Sprintf("%d per %v, %d at once", limit.Rate.Units, limit.Rate.Per, limit.Capacity())
}

// Undecided returns the answer to a call without a decision. It contains no part of the error's text.
func Undecided(ctx context.Context, why outcome.Cause, keyCode Code, wait time.Duration) Answer {
	switch why {
	case outcome.CauseKey:
		return BadKey(keyCode)
	case outcome.CauseGone:
		return Gone(ctx)
	case outcome.CauseRequest:
		return BadRequest
	case outcome.CauseCost, outcome.CauseMisconfigured:
		return Undecidable
	}
	return Answer{Code: Unavailable, Message: "the rate limiter is not available", Wait: wait}
}

// BadKey returns the answer to a call whose key is missing or malformed.
func BadKey(code Code) Answer {
	return Answer{Code: code, Message: Calls.BadKey}
}

// Gone returns the answer to a call whose context has ended.
func Gone(ctx context.Context) Answer {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return Answer{Code: DeadlineExceeded, Message: err.Error()}
	}
	return Answer{Code: Canceled, Message: context.Canceled.Error()}
}

// NoRoom returns the answer to a call that finds too many others in flight.
func NoRoom(wait time.Duration) Answer {
	return Answer{Code: Unavailable, Message: "too many calls at the same time", Wait: wait}
}

// The constant answers.
var (
	BadRequest  = Answer{Code: InvalidArgument, Message: "the call is malformed"}
	Undecidable = Answer{Code: Internal, Message: "the call could not be decided"}
	TooLarge    = Answer{Code: ResourceExhausted, Message: Calls.TooLarge, Never: true}
	Blocked     = Answer{Code: ResourceExhausted, Message: Calls.Blocked, Never: true}
)

// TypePrefix is the beginning of all types' URLs.
const TypePrefix = "type.googleapis.com/"

const (
	retryInfoURL    = TypePrefix + "google.rpc.RetryInfo"
	quotaFailureURL = TypePrefix + "google.rpc.QuotaFailure"
)

// Detail is a google.protobuf.Any: a type's URL, and an encoded message of that type.
type Detail struct {
	URL   string
	Value []byte
}

// RetryInfoSize is the maximum number of bytes in a RetryInfo.
const RetryInfoSize = 24

// Details returns the answer's details and their number. It encodes the RetryInfo into retry.
func (a *Answer) Details(retry *[RetryInfoSize]byte) (details [2]Detail, n int) {
	if ms := Milliseconds(a.Wait); ms > 0 {
		details[n] = Detail{retryInfoURL, appendRetryInfo(retry[:0], ms)}
		n++
	}
	if a.Limit != nil {
		details[n] = Detail{quotaFailureURL, a.Limit.Quota}
		n++
	}
	return details, n
}

// AppendStatus encodes the answer as a google.rpc.Status.
func (a *Answer) AppendStatus(b []byte) []byte {
	b = appendInt(b, 1, uint64(a.Code))
	b = appendBytes(b, 2, a.Message)
	details, n := a.Details(new([RetryInfoSize]byte))
	for _, d := range details[:n] {
		var detail []byte
		detail = appendBytes(detail, 1, d.URL)
		detail = appendBytes(detail, 2, d.Value)
		b = appendBytes(b, 3, detail)
	}
	return b
}

// appendRetryInfo encodes a google.rpc.RetryInfo. Its only field is a Duration.
func appendRetryInfo(b []byte, ms int64) []byte {
	var d [16]byte
	delay := appendInt(d[:0], 1, uint64(ms/1000))
	delay = appendInt(delay, 2, uint64(ms%1000)*uint64(time.Millisecond))
	b = appendTag(b, 1, 2) // the field retry_delay; it may be empty
	b = binary.AppendUvarint(b, uint64(len(delay)))
	return append(b, delay...)
}

// quotaFailure returns an encoded google.rpc.QuotaFailure with one violation.
func quotaFailure(name, description string, value uint64) []byte {
	var v []byte
	v = appendBytes(v, 1, name) // the field subject
	v = appendBytes(v, 2, description)
	v = appendBytes(v, 5, name)   // the field quota_id
	v = appendInt(v, 7, value)    // the field quota_value
	return appendBytes(nil, 1, v) // the field violations
}

// The wire format of protobuf. Each field begins with its number
// and the type of its value. Empty and zero fields are omitted.

func appendTag(b []byte, field, wire uint64) []byte { return binary.AppendUvarint(b, field<<3|wire) }

func appendInt(b []byte, field, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(appendTag(b, field, 0), v)
}

func appendBytes[T string | []byte](b []byte, field uint64, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = binary.AppendUvarint(appendTag(b, field, 2), uint64(len(v)))
	return append(b, v...)
}
