package edge

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

func TestTheOutcomeOfACallFollowsItsCodeDeadlineAndKind(t *testing.T) {
	open := context.Background()
	timed, stop := context.WithTimeout(open, time.Hour)
	defer stop()
	ended, end := context.WithCancel(open)
	end()
	for _, c := range []struct {
		name      string
		ctx       context.Context
		code      rpcstatus.Code
		streaming bool
		want      inflight.Outcome
	}{
		{"a success", open, 0, false, inflight.Success},
		{"a success before its deadline", timed, 0, false, inflight.Success},
		{"a client's error", open, rpcstatus.InvalidArgument, false, inflight.Success},
		{"a missing credential", open, rpcstatus.Unauthenticated, false, inflight.Success},
		{"an unavailable server", open, rpcstatus.Unavailable, false, inflight.Dropped},
		{"an unavailable server, with a deadline", timed, rpcstatus.Unavailable, false, inflight.Dropped},
		{"an exhausted server", open, rpcstatus.ResourceExhausted, false, inflight.Dropped},
		{"the server's own deadline", open, rpcstatus.DeadlineExceeded, false, inflight.Dropped},
		{"the caller's deadline", timed, rpcstatus.DeadlineExceeded, false, inflight.Cancelled},
		{"a bug", open, rpcstatus.Internal, false, inflight.Cancelled},
		{"an unknown error", open, rpcstatus.Unknown, false, inflight.Cancelled},
		{"lost data", open, rpcstatus.DataLoss, false, inflight.Cancelled},
		{"a cancelled call", open, rpcstatus.Canceled, false, inflight.Cancelled},
		{"a success after the caller has left", ended, 0, false, inflight.Cancelled},
		{"an unavailable server after the caller has left", ended, rpcstatus.Unavailable, false, inflight.Cancelled},
		{"a stream that succeeds", open, 0, true, inflight.Ignored},
		{"a stream that is cancelled", open, rpcstatus.Canceled, true, inflight.Ignored},
		{"a stream at the caller's deadline", timed, rpcstatus.DeadlineExceeded, true, inflight.Ignored},
		{"a stream at the server's deadline", open, rpcstatus.DeadlineExceeded, true, inflight.Dropped},
		{"a stream of an unavailable server", open, rpcstatus.Unavailable, true, inflight.Dropped},
		{"a stream that ends by a bug", open, rpcstatus.Internal, true, inflight.Cancelled},
	} {
		assert.Equal(t, c.want, OutcomeOfCode(c.ctx, c.code, c.streaming), c.name)
		assert.Equal(t, c.want, OutcomeOfCall(c.ctx, c.code, c.streaming), c.name)
		refused := outcome.WatchRefusals(c.ctx)
		outcome.MarkRefused(refused)
		assert.Equal(t, inflight.Ignored, OutcomeOfCall(refused, c.code, c.streaming), "%s, refused by a limit", c.name)
	}
}
