package httplimit

import (
	"net/http"

	"github.com/weir-go/ratelimit/internal/undecided"
)

// problemOf returns the answer, with that status if the key is missing or malformed.
func problemOf(r undecided.Reason, keyCode int) *problem {
	switch {
	case r == undecided.Key:
		return badKey(keyCode)
	case r.Retryable():
		return reducedCapacity
	}
	return internalError
}

// badKey returns the answer to a request whose key is missing or malformed.
func badKey(code int) *problem {
	if code == 0 || code == http.StatusBadRequest {
		return badRequest
	}
	return newPlainProblem(code)
}

var (
	badRequest      = newPlainProblem(http.StatusBadRequest)
	internalError   = newPlainProblem(http.StatusInternalServerError)
	unavailable     = newPlainProblem(http.StatusServiceUnavailable)
	reducedCapacity = members{
		Type: typeReducedCapacity, Title: "Temporary reduced capacity", Status: http.StatusServiceUnavailable,
	}.encode()
)
