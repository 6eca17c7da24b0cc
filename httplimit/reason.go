package httplimit

import (
	"cmp"
	"net/http"

	"github.com/weir-go/ratelimit/internal/rpcstatus"
	"github.com/weir-go/ratelimit/internal/undecided"
)

// problemOf returns the answer to a request that could not be decided.
func (m *Middleware) problemOf(r undecided.Reason) *problem {
	switch {
	case r == undecided.Key:
		return m.badKey
	case r.Retryable():
		return reducedCapacity
	}
	return internalError
}

// newBadKey returns the answer to a request whose key is missing or malformed. If the status is
// zero, it is 400.
func newBadKey(status int) *problem {
	return newPlainProblem(cmp.Or(status, http.StatusBadRequest), rpcstatus.Requests.BadKey)
}

var (
	internalError   = newPlainProblem(http.StatusInternalServerError, "")
	unavailable     = newPlainProblem(http.StatusServiceUnavailable, "")
	tooLarge        = newPlainProblem(http.StatusForbidden, rpcstatus.Requests.TooLarge)
	blocked         = newPlainProblem(http.StatusForbidden, rpcstatus.Requests.Blocked)
	reducedCapacity = members{
		Type: typeReducedCapacity, Title: "Temporary reduced capacity", Status: http.StatusServiceUnavailable,
	}.encode()
)
