package grpclimit

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/pace"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// answer is a call's advice at its end for a client.
type answer struct {
	pace.Advice
	retry bool // whether the call was refused before it was processed, and so may be sent again
}

// answerOf reads a call's end: its error, or nil for success, and its header and trailer.
func answerOf(err error, header, trailer metadata.MD) (a answer) {
	st := status.Convert(err)
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded:
		return a // the server may not have received the call
	}
	a.Budgets = budgetsOf(header, trailer)
	switch st.Code() {
	case codes.ResourceExhausted, codes.Unavailable:
	default:
		a.Answered = true
		return a
	}
	info, delayed := retryDelay(st)
	pushback, pushed, stop := pushbackOf(trailer)
	a.Answered = st.Code() == codes.ResourceExhausted
	a.Refused = delayed || pushed
	a.retry = a.Refused && !stop && a.Answered
	if a.Refused {
		a.Wait = max(info, pushback, 1) // not 0: 0 stands for no time
	}
	return a
}

// budgetsOf returns the remaining budgets in a server's fields. It reads the fields as httplimit does.
func budgetsOf(header, trailer metadata.MD) (budgets []pace.Budget) {
	var h http.Header
	for _, md := range []metadata.MD{header, trailer} {
		for key, values := range md {
			if strings.HasPrefix(key, "ratelimit") || strings.HasPrefix(key, "x-ratelimit-") || strings.HasPrefix(key, "x-rate-limit-") {
				if h == nil {
					h = http.Header{}
				}
				name := http.CanonicalHeaderKey(key)
				h[name] = append(h[name], values...)
			}
		}
	}
	if h == nil {
		return nil
	}
	now := time.Now()
	for _, b := range httplimit.AdviceOf(&http.Response{StatusCode: http.StatusOK, Header: h}).Budgets {
		if b.Left >= 0 && b.Reset > 0 {
			budgets = append(budgets, pace.Budget{Policy: b.Name, Left: b.Left, Units: b.Costs, Until: now.Add(pace.Clamp(b.Reset)),
				Limit: b.Limit, Window: b.Window, Refills: b.Refills})
		}
	}
	return budgets
}

// retryDelay returns the longest wait in a status's details, and whether there is one.
func retryDelay(st *status.Status) (wait time.Duration, found bool) {
	for _, detail := range st.Details() {
		info, ok := detail.(*errdetails.RetryInfo)
		if !ok || info.RetryDelay == nil {
			continue
		}
		if d := info.RetryDelay.AsDuration(); d >= 0 {
			wait, found = max(wait, pace.Clamp(d)), true
		}
	}
	return wait, found
}

// pushbackOf returns a trailer's demanded wait, whether there is one, and whether the trailer forbids
// a retry. According to gRFC A6, every value except a single number of 0 or more forbids a retry.
func pushbackOf(trailer metadata.MD) (wait time.Duration, found, stop bool) {
	values := trailer[rpcstatus.PushbackKey]
	if len(values) == 0 {
		return 0, false, false
	}
	ms, err := strconv.ParseInt(values[0], 10, 64)
	if len(values) > 1 || err != nil || ms < 0 {
		return 0, false, true
	}
	return time.Duration(min(ms, pace.MaxWait.Milliseconds())) * time.Millisecond, true, false
}
