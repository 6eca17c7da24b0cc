package main

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	descriptors "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
)

// ShouldRateLimit answers Envoy. If descriptors have one addend, their entries are the attributes of one
// request: with a decision for each descriptor, a rule matching two of them would be charged twice.
// Descriptors with different values of one key, or with different addends, are separate requests, decided all
// or none. So a request of 90 tokens is still one request. A rule with "charge: always" counts its denied
// requests. While its budget is exhausted, it also denies an addend of 0. Envoy sends one before a stream,
// and charges the stream at its end. On an error Envoy lets requests pass, unless failure_mode_deny is set.
func (s *service) ShouldRateLimit(ctx context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	if len(r.GetDescriptors()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the request has no descriptors")
	}
	groups, group, err := grouped(r)
	if err != nil {
		return nil, err
	}
	resp := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK, Statuses: make([]*rls.RateLimitResponse_DescriptorStatus, len(group))}
	answers := make([]*rls.RateLimitResponse_DescriptorStatus, len(groups))
	charged := make([]*ratelimit.Reservation, 0, len(groups))
	wait := time.Duration(0)
	giveBack := func() {
		for _, res := range charged {
			_ = res.Cancel() // the limiter counts the error
		}
	}
	for i, g := range groups {
		res, err := s.limiter.Reserve(ctx, g.attributes, g.cost, 0)
		if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
			giveBack()
			return nil, failure(err)
		}
		if res == nil { // for an error without a decision
			res = new(ratelimit.Reservation)
		}
		charged = append(charged, res)
		answers[i] = statusOf(&res.Decision)
		if !res.Allowed {
			resp.OverallCode = rls.RateLimitResponse_OVER_LIMIT
			wait = max(wait, res.RetryAfter)
		}
	}
	if resp.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
		giveBack()
	}
	if wait > 0 {
		resp.ResponseHeadersToAdd = []*core.HeaderValue{{Key: "Retry-After", Value: strconv.FormatInt(int64((wait-1)/time.Second)+1, 10)}}
	}
	for i, at := range group {
		resp.Statuses[i] = answers[at]
	}
	return resp, nil
}

// ruleRequest is one request for the rules. It has the entries of descriptors with one addend and without conflicts.
type ruleRequest struct {
	attributes policy.Attributes
	cost       int
}

// grouped returns the requests for the rules, and for each descriptor its request's index.
func grouped(r *rls.RateLimitRequest) (groups []ruleRequest, group []int, err error) {
	for _, d := range r.GetDescriptors() {
		if d.GetIsNegativeHits() {
			return nil, nil, status.Error(codes.Unimplemented, "hits are not given back")
		}
		a := policy.Attributes{"domain": r.GetDomain()}
		for _, e := range d.GetEntries() {
			a[e.GetKey()] = e.GetValue()
		}
		if err := complete(a); err != nil {
			return nil, nil, status.Error(codes.InvalidArgument, err.Error())
		}
		units, at := cost(r, d), 0
		for at < len(groups) && (groups[at].cost != units || !agree(groups[at].attributes, a)) {
			at++
		}
		if at == len(groups) {
			groups = append(groups, ruleRequest{policy.Attributes{}, units})
		}
		for key, value := range a {
			groups[at].attributes[key] = value
		}
		group = append(group, at)
	}
	return groups, group, nil
}

// complete converts a descriptor's entries to attributes.
func complete(a policy.Attributes) error {
	for _, name := range []string{"remote_address", "masked_remote_address"} {
		if text, ok := a[name]; ok && !strings.Contains(text, "/") {
			if err := cutAddress(a, name); err != nil {
				return err
			}
		}
	}
	if ip, ok := a["remote_address"]; ok {
		a["ip"] = ip
	}
	if path, ok := a["path"]; ok { // Envoy's :path includes the query
		a["path"], _, _ = strings.Cut(path, "?")
	}
	return nil
}

func agree(a, b policy.Attributes) bool {
	for key, value := range b {
		if other, ok := a[key]; ok && other != value {
			return false
		}
	}
	return true
}

// cost returns a descriptor's cost: its own hits_addend, or otherwise the request's. A request's 0 means 1.
func cost(r *rls.RateLimitRequest, d *descriptors.RateLimitDescriptor) int {
	if own := d.GetHitsAddend(); own != nil {
		return int(min(own.GetValue(), math.MaxInt32))
	}
	return int(min(max(r.GetHitsAddend(), 1), math.MaxInt32))
}

// units are the windows that have names in Envoy's protocol.
var units = map[time.Duration]rls.RateLimitResponse_RateLimit_Unit{
	time.Second: rls.RateLimitResponse_RateLimit_SECOND, time.Minute: rls.RateLimitResponse_RateLimit_MINUTE,
	time.Hour: rls.RateLimitResponse_RateLimit_HOUR, 24 * time.Hour: rls.RateLimitResponse_RateLimit_DAY,
}

// statusOf returns a decision in Envoy's form.
func statusOf(d *ratelimit.Decision) *rls.RateLimitResponse_DescriptorStatus {
	s := &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK, LimitRemaining: figure(d.Remaining)}
	until := d.ResetAfter
	if !d.Allowed {
		s.Code, until = rls.RateLimitResponse_OVER_LIMIT, d.RetryAfter
	}
	if until > 0 {
		s.DurationUntilReset = durationpb.New(until)
	}
	switch l := d.Limit; l.Algorithm {
	case 0, ratelimit.AlgorithmUnlimited:
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmSlidingCounter:
		s.CurrentLimit = &rls.RateLimitResponse_RateLimit{Name: l.Name, RequestsPerUnit: figure(l.Capacity()), Unit: units[l.Rate.Per]}
	default: // a bucket holds more than one unit's requests, and a calendar's window has no fixed length
		s.CurrentLimit = &rls.RateLimitResponse_RateLimit{Name: l.Name, RequestsPerUnit: figure(l.Capacity())}
	}
	return s
}

func figure(n int) uint32 { return uint32(min(max(n, 0), math.MaxInt32)) }

// failure returns a limiter's error as a status. Its text contains no key.
func failure(err error) error {
	switch {
	case errors.Is(err, keyfunc.ErrMisconfigured):
		return status.Error(codes.Internal, err.Error())
	case errors.Is(err, keyfunc.ErrNoKey), errors.Is(err, keyfunc.ErrMalformedKey):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, ratelimit.ErrUnavailable), errors.Is(err, ratelimit.ErrTableFull):
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
