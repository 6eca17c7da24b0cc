package grpclimit

import (
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// Event is one decision. It is valid during the call that gets it.
type Event struct {
	// Call is the call as the interceptor got it; in decisions on messages, with the
	// message in Call.Request.
	Call *Call
	// Cost is what the call or message costs.
	Cost int
	// Decision is the limiter's answer. Its field Degraded reports a decision that was
	// taken without the shared store.
	Decision ratelimit.Decision
	// Err is the limiter's error, nil if the call is allowed or denied.
	Err error
	// Outcome is what the interceptor does with the call.
	Outcome httplimit.Outcome
}
