package grpclimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

func shedding(t testing.TB, limit int, opts *inflight.Options[string], o *grpclimit.InflightOptions) *grpclimit.Inflight[string] {
	t.Helper()
	l, err := inflight.New(limit, opts)
	require.NoError(t, err)
	i, err := grpclimit.NewInflight(l, everyone, o)
	require.NoError(t, err)
	return i
}

func TestCallsBeyondTheLimitAreShed(t *testing.T) {
	i := shedding(t, 1, nil, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	client := serve(t, &service{stream: func(testgrpc.TestService_FullDuplexCallServer) error {
		close(entered)
		<-leave
		return nil
	}}, grpc.UnaryInterceptor(i.UnaryServerInterceptor()), grpc.StreamInterceptor(i.StreamServerInterceptor()))
	done := make(chan answer)
	go func() {
		a, _ := open(context.Background(), client, 0)
		done <- a
	}()
	<-entered
	a := call(context.Background(), client)
	assert.Equal(t, codes.Unavailable, a.code)
	assert.Empty(t, a.header)
	assert.Empty(t, a.pushback, "nobody has waited yet")
	a, _ = open(context.Background(), client, 0)
	assert.Equal(t, codes.Unavailable, a.code)
	close(leave)
	assert.Equal(t, codes.OK, (<-done).code)
	assert.Equal(t, codes.OK, call(context.Background(), client).code, "the stream has given its permit back")
	assert.Equal(t, httplimit.InflightStats{Admitted: 2, Shed: 2}, i.Stats())
}

// Package edge tests the cause of each refusal.
func TestInflightRefusals(t *testing.T) {
	failing := func(err error) func(*grpclimit.Call) (string, error) {
		return func(*grpclimit.Call) (string, error) { return "", err }
	}
	for name, row := range map[string]struct {
		key   func(*grpclimit.Call) (string, error)
		opts  *grpclimit.InflightOptions
		want  codes.Code
		stats httplimit.InflightStats
	}{
		"more than there is": {everyone, &grpclimit.InflightOptions{Units: func(*grpclimit.Call) int { return 2 }}, codes.ResourceExhausted, httplimit.InflightStats{Failed: 1}},
		"no key":             {failing(keyfunc.ErrNoKey), nil, codes.InvalidArgument, httplimit.InflightStats{Rejected: 1}},
		"no key, by choice":  {failing(keyfunc.ErrNoKey), &grpclimit.InflightOptions{KeyCode: codes.Unauthenticated}, codes.Unauthenticated, httplimit.InflightStats{Rejected: 1}},
		"another error":      {failing(errors.New(secret)), nil, codes.Internal, httplimit.InflightStats{Failed: 1}},
		"skipped":            {failing(errors.New(secret)), &grpclimit.InflightOptions{Skip: func(*grpclimit.Call) bool { return true }}, codes.OK, httplimit.InflightStats{Skipped: 1}},
		"OnRefused": {failing(keyfunc.ErrNoKey), &grpclimit.InflightOptions{OnRefused: func(_ *grpclimit.Call, err error, s *status.Status) *status.Status {
			assert.ErrorIs(t, err, keyfunc.ErrNoKey)
			assert.Equal(t, codes.InvalidArgument, s.Code())
			return status.New(codes.Aborted, "")
		}}, codes.Aborted, httplimit.InflightStats{Rejected: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			i, err := grpclimit.NewInflight(ratelimit.Must(inflight.New[string](1, nil)), row.key, row.opts)
			require.NoError(t, err)
			_, err = i.UnaryServerInterceptor()(t.Context(), nil, info, answering(nil))
			assert.Equal(t, row.want, status.Code(err))
			assert.NotContains(t, status.Convert(err).Message(), secret)
			assert.Equal(t, row.stats, i.Stats())
		})
	}
}

func TestMaxWaitBoundsTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call := shedding(t, 1, &inflight.Options[string]{MaxQueue: 5}, &grpclimit.InflightOptions{MaxWait: time.Second}).UnaryServerInterceptor()
		go func() {
			_, _ = call(context.Background(), nil, info, func(context.Context, any) (any, error) { time.Sleep(time.Minute); return nil, nil })
		}()
		synctest.Wait()
		start := time.Now()
		_, err := call(context.Background(), nil, info, unreachable(t))
		assert.Equal(t, codes.Unavailable, status.Code(err), "not the call's own deadline")
		assert.Equal(t, time.Second, time.Since(start))
		time.Sleep(time.Minute) // until the first call has ended
	})
}

func TestAPermitIsGivenBackAfterAnyPanic(t *testing.T) {
	var outcomes []inflight.Outcome
	i := shedding(t, 1, nil, &grpclimit.InflightOptions{Outcome: func(_ *grpclimit.Call, code codes.Code, usual inflight.Outcome) inflight.Outcome {
		outcomes = append(outcomes, usual)
		if code == codes.NotFound {
			panic("Outcome")
		}
		return inflight.Success
	}})
	call := i.UnaryServerInterceptor()
	boom := func() { panic("handler") }
	assert.PanicsWithValue(t, "handler", func() {
		_, _ = call(context.Background(), nil, info, func(context.Context, any) (any, error) { boom(); return nil, nil })
	})
	assert.PanicsWithValue(t, "Outcome", func() {
		_, _ = call(context.Background(), nil, info, answering(status.Error(codes.NotFound, "")))
	})
	_, err := call(context.Background(), nil, info, answering(nil))
	require.NoError(t, err)
	assert.Equal(t, []inflight.Outcome{inflight.Cancelled, inflight.Success, inflight.Success}, outcomes)
}

// Package edge tests the outcome of each code.
func TestAnAdaptiveLimitLearnsFromOutcomes(t *testing.T) {
	unary, stream := grpclimit.NewCall(t.Context(), "", nil), grpclimit.NewCall(t.Context(), "", nil)
	stream.ServerStream = true
	assert.Equal(t, inflight.Success, grpclimit.UsualOutcome(unary, codes.OK))
	assert.Equal(t, inflight.Dropped, grpclimit.UsualOutcome(unary, codes.Unavailable))
	assert.Equal(t, inflight.Cancelled, grpclimit.UsualOutcome(grpclimit.NewCall(cancelled(), "", nil), codes.OK))
	assert.Equal(t, inflight.Ignored, grpclimit.UsualOutcome(stream, codes.OK))
}

func TestMistakesOfInflightAreRefused(t *testing.T) {
	l := ratelimit.Must(inflight.New[string](1, nil))
	_, err := grpclimit.NewInflight(nil, everyone, nil)
	assert.EqualError(t, err, "grpclimit: NewInflight: l is nil")
	_, err = grpclimit.NewInflight(l, nil, nil)
	assert.Error(t, err)
	whole := ratelimit.Must(inflight.New[*grpclimit.Call](1, nil))
	_, err = grpclimit.NewInflight(whole, func(c *grpclimit.Call) (*grpclimit.Call, error) { return c, nil }, nil)
	assert.ErrorContains(t, err, "grpclimit: this limiter's key is the call itself")
	_, err = grpclimit.NewInflight(l, everyone, &grpclimit.InflightOptions{MaxWait: -1})
	assert.EqualError(t, err, "grpclimit: InflightOptions.MaxWait is -1ns, want 0 for none, or more")
	none, err := grpclimit.NewInflight(l, everyone, &grpclimit.InflightOptions{KeyCode: 99})
	assert.Nil(t, none)
	assert.EqualError(t, err, "grpclimit: InflightOptions.KeyCode is 99, which does not exist")
	assert.PanicsWithError(t, "grpclimit: this Inflight is nil or zero: make one with NewInflight", func() {
		new(grpclimit.Inflight[string]).UnaryServerInterceptor()
	})
}
