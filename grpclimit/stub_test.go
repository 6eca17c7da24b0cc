package grpclimit_test

import (
	"context"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// stub is a limiter that returns the prepared decision.
type stub struct {
	decision ratelimit.Decision
	err      error
}

func (s *stub) Allow(*grpclimit.Call, int) bool { return s.decision.Allowed }

func (s *stub) Take(context.Context, *grpclimit.Call, int) (ratelimit.Decision, error) {
	return s.decision, s.err
}
