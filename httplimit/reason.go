package httplimit

import (
	"net/http"

	"github.com/weir-go/ratelimit/internal/undecided"
)

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
