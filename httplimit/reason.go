package httplimit

import (
	"net/http"

	"github.com/weir-go/ratelimit/internal/undecided"
)

// reasonOf returns why an event has an error.
func reasonOf(e *Event) undecided.Reason { return undecided.Why(e.Request.Context(), e.Err) }

func problemOf(r undecided.Reason) *problem {
	switch {
	case r == undecided.Key:
		return badRequest
	case r.Retryable():
		return reducedCapacity
	}
	return internalError
}

var (
	badRequest      = newPlainProblem(http.StatusBadRequest)
	internalError   = newPlainProblem(http.StatusInternalServerError)
	unavailable     = newPlainProblem(http.StatusServiceUnavailable)
	reducedCapacity = members{
		Type: typeReducedCapacity, Title: "Temporary reduced capacity", Status: http.StatusServiceUnavailable,
	}.encode()
)
