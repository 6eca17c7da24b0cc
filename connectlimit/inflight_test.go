package connectlimit_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/connectlimit"
	"github.com/weir-go/ratelimit/inflight"
)

// anOpening is a stream as a handler's interceptor receives it.
type anOpening struct{ connect.StreamingHandlerConn }

func (anOpening) Spec() connect.Spec {
	return connect.Spec{Procedure: countProcedure, StreamType: connect.StreamTypeServer}
}
func (anOpening) RequestHeader() http.Header { return http.Header{} }
func (anOpening) Peer() connect.Peer         { return connect.Peer{} }

// inside returns an interceptor, and calls that run inside of a handler's unary call or stream.
func inside(t *testing.T, l *inflight.Limiter[string], opts *connectlimit.InflightOptions) (unary, stream func(do func(ctx context.Context) error) error) {
	i := ratelimit.Must(connectlimit.NewInflight(l, everyone, opts))
	unary = func(do func(ctx context.Context) error) error {
		_, err := i.WrapUnary(func(ctx context.Context, _ connect.AnyRequest) (connect.AnyResponse, error) { return nil, do(ctx) })(t.Context(), aRequest)
		return err
	}
	stream = func(do func(ctx context.Context) error) error {
		return i.WrapStreamingHandler(func(ctx context.Context, _ connect.StreamingHandlerConn) error { return do(ctx) })(t.Context(), anOpening{})
	}
	return unary, stream
}

func learning() *inflight.Limiter[string] {
	return ratelimit.Must(inflight.New(10, &inflight.Options[string]{Adaptive: inflight.Learn(&inflight.LearnOptions{Start: 1})}))
}

func TestAPermitComesBackAfterAPanic(t *testing.T) {
	outcome := &connectlimit.InflightOptions{Outcome: func(*connectlimit.Call, error, inflight.Outcome) inflight.Outcome { panic("in Outcome") }}
	fails := func(context.Context) error { panic("in the handler") }
	succeeds := func(context.Context) error { return nil }
	for name, row := range map[string]struct {
		l    *inflight.Limiter[string]
		opts *connectlimit.InflightOptions
		do   func(context.Context) error
	}{
		"in the handler, under a fixed limit":  {ratelimit.Must(inflight.New[string](10, nil)), nil, fails},
		"in the handler, under a learnt limit": {learning(), nil, fails},
		"in Outcome":                           {learning(), outcome, succeeds},
	} {
		unary, stream := inside(t, row.l, row.opts)
		assert.Panics(t, func() { _ = unary(row.do) }, name)
		assert.Panics(t, func() { _ = stream(row.do) }, name)
		assert.Zero(t, row.l.Totals().InFlight, name)
	}
}

// Open streams leave the learnt limit to other calls. Unary calls do not.
func TestOpenStreamsLeaveTheLearntLimitToOthers(t *testing.T) {
	unary, stream := inside(t, learning(), nil)
	served := false
	require.NoError(t, stream(func(context.Context) error {
		return stream(func(context.Context) error {
			return unary(func(context.Context) error {
				served = true
				err := unary(func(context.Context) error { return nil })
				assert.Equal(t, connect.CodeUnavailable, connect.CodeOf(err), "the learnt limit is 1")
				return nil
			})
		})
	}))
	assert.True(t, served)
}

func TestARefusalByAnInnerLimiterIsIgnored(t *testing.T) {
	var seen []inflight.Outcome
	unary, stream := inside(t, ratelimit.Must(inflight.New[string](10, nil)), &connectlimit.InflightOptions{
		Outcome: func(_ *connectlimit.Call, _ error, usual inflight.Outcome) inflight.Outcome {
			seen = append(seen, usual)
			return usual
		},
	})
	blocked, _ := keyed(t, ratelimit.Blocked(), everyone, nil)
	refused := func(ctx context.Context) error {
		_, err := blocked.WrapUnary(nil)(ctx, aRequest)
		return err
	}
	require.Error(t, unary(refused))
	require.Error(t, stream(refused))
	assert.Equal(t, []inflight.Outcome{inflight.Ignored, inflight.Ignored}, seen)
}

func TestOnRefusedMayKeepTheUsualAnswer(t *testing.T) {
	l := ratelimit.Must(inflight.New[string](1, nil))
	_, err := l.TryAcquire("everyone", 1)
	require.NoError(t, err)
	for _, own := range []*connect.Error{nil, connect.NewError(connect.CodeAborted, errors.New("later"))} {
		unary, _ := inside(t, l, &connectlimit.InflightOptions{OnRefused: func(*connectlimit.Call, error, *connect.Error) *connect.Error { return own }})
		want := connect.CodeUnavailable
		if own != nil {
			want = connect.CodeAborted
		}
		assert.Equal(t, want, connect.CodeOf(unary(func(context.Context) error { return nil })))
	}
}
