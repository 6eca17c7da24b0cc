package grpclimit_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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

func TestAShedCallGetsTheRecentWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call := shedding(t, 1, &inflight.Options[string]{MaxQueue: 1}, nil).UnaryServerInterceptor()
		slow := func(context.Context, any) (any, error) { time.Sleep(1500 * time.Microsecond); return nil, nil }
		go func() { _, _ = call(context.Background(), nil, info, slow) }()
		synctest.Wait()
		_, err := call(context.Background(), nil, info, slow) // waits in the queue
		require.NoError(t, err)
		for range 2 { // one works, one waits
			go func() { _, _ = call(context.Background(), nil, info, slow) }()
			synctest.Wait()
		}
		_, err = call(context.Background(), nil, info, unreachable(t))
		s := status.Convert(err)
		assert.Equal(t, codes.Unavailable, s.Code())
		require.Len(t, s.Details(), 1)
		assert.Equal(t, 2*time.Millisecond, s.Details()[0].(*errdetails.RetryInfo).RetryDelay.AsDuration(), "rounded up")
		assert.ErrorIs(t, err, ratelimit.ErrLimited)
		time.Sleep(time.Minute) // until the others have ended
	})
}

func TestInflightRefusals(t *testing.T) {
	full := func(t *testing.T) *inflight.Limiter[string] {
		l, err := inflight.New(1, &inflight.Options[string]{MaxKeys: 1})
		require.NoError(t, err)
		_, err = l.TryAcquire("another", 1)
		require.NoError(t, err)
		return l
	}
	zero := func(*testing.T) *inflight.Limiter[string] {
		return ratelimit.Must(inflight.New(1, &inflight.Options[string]{LimitFor: func(string) int { return -1 }}))
	}
	one := func(t *testing.T) *inflight.Limiter[string] { return ratelimit.Must(inflight.New[string](1, nil)) }
	failing := func(err error) func(*grpclimit.Call) (string, error) {
		return func(*grpclimit.Call) (string, error) { return "", err }
	}
	for name, row := range map[string]struct {
		limiter func(*testing.T) *inflight.Limiter[string]
		key     func(*grpclimit.Call) (string, error)
		opts    *grpclimit.InflightOptions
		ctx     context.Context
		want    codes.Code
		stats   httplimit.InflightStats
	}{
		"the table is full":  {full, everyone, nil, nil, codes.Unavailable, httplimit.InflightStats{Failed: 1}},
		"more than there is": {one, everyone, &grpclimit.InflightOptions{Units: func(*grpclimit.Call) int { return 2 }}, nil, codes.ResourceExhausted, httplimit.InflightStats{Failed: 1}},
		"a blocked key":      {zero, everyone, nil, nil, codes.ResourceExhausted, httplimit.InflightStats{Failed: 1}},
		"negative units":     {one, everyone, &grpclimit.InflightOptions{Units: func(*grpclimit.Call) int { return math.MinInt }}, nil, codes.Internal, httplimit.InflightStats{Failed: 1}},
		"no key":             {one, failing(keyfunc.ErrNoKey), nil, nil, codes.InvalidArgument, httplimit.InflightStats{Rejected: 1}},
		"no key, by choice":  {one, failing(keyfunc.ErrNoKey), &grpclimit.InflightOptions{KeyCode: codes.Unauthenticated}, nil, codes.Unauthenticated, httplimit.InflightStats{Rejected: 1}},
		"misconfigured":      {one, failing(errMisconfigured), nil, nil, codes.Internal, httplimit.InflightStats{Failed: 1}},
		"another error":      {one, failing(errors.New(secret)), nil, nil, codes.Internal, httplimit.InflightStats{Failed: 1}},
		"the client left":    {one, everyone, nil, cancelled(), codes.Canceled, httplimit.InflightStats{Shed: 1}},
		"the deadline":       {one, everyone, nil, expired(t), codes.DeadlineExceeded, httplimit.InflightStats{Shed: 1}},
		"left out":           {one, failing(ratelimit.SkipLayer), nil, nil, codes.OK, httplimit.InflightStats{Skipped: 1}},
		"skipped":            {one, failing(errors.New("asked")), &grpclimit.InflightOptions{Skip: func(*grpclimit.Call) bool { return true }}, nil, codes.OK, httplimit.InflightStats{Skipped: 1}},
		"OnRefused": {one, failing(keyfunc.ErrNoKey), &grpclimit.InflightOptions{OnRefused: func(_ *grpclimit.Call, err error, s *status.Status) *status.Status {
			assert.ErrorIs(t, err, keyfunc.ErrNoKey)
			assert.Equal(t, codes.InvalidArgument, s.Code())
			return status.New(codes.Aborted, "")
		}}, nil, codes.Aborted, httplimit.InflightStats{Rejected: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			i, err := grpclimit.NewInflight(row.limiter(t), row.key, row.opts)
			require.NoError(t, err)
			ctx := row.ctx
			if ctx == nil {
				ctx = context.Background()
			}
			_, err = i.UnaryServerInterceptor()(ctx, nil, info, answering(nil))
			assert.Equal(t, row.want, status.Code(err))
			assert.NotContains(t, status.Convert(err).Message(), secret)
			assert.Equal(t, name == "a blocked key", status.Convert(err).Message() == "the key is blocked: do not retry")
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

func TestAnAdaptiveLimitLearnsFromOutcomes(t *testing.T) {
	for _, row := range []struct {
		ctx    context.Context
		stream bool
		code   codes.Code
		want   inflight.Outcome
	}{
		{code: codes.OK, want: inflight.Success},
		{code: codes.NotFound, want: inflight.Success},
		{code: codes.Unavailable, want: inflight.Dropped},
		{code: codes.DeadlineExceeded, want: inflight.Dropped},
		{code: codes.Internal, want: inflight.Cancelled},
		{code: codes.Unknown, want: inflight.Cancelled},
		{code: codes.ResourceExhausted, want: inflight.Dropped},
		{code: codes.Canceled, want: inflight.Cancelled},
		{ctx: cancelled(), code: codes.Unavailable, want: inflight.Cancelled},
		{ctx: expired(t), code: codes.DeadlineExceeded, want: inflight.Cancelled},
		{ctx: expired(t), code: codes.OK, want: inflight.Cancelled},
		{ctx: hurried(t), code: codes.DeadlineExceeded, want: inflight.Cancelled}, // a callee gave up a little earlier
		{ctx: hurried(t), code: codes.Unavailable, want: inflight.Dropped},
		{ctx: hurried(t), code: codes.OK, want: inflight.Success},
		{ctx: expired(t), stream: true, code: codes.DeadlineExceeded, want: inflight.Ignored},
		{stream: true, code: codes.OK, want: inflight.Ignored},
		{stream: true, code: codes.Unavailable, want: inflight.Dropped},
	} {
		c := grpclimit.NewCall(row.ctx, "", nil)
		c.ServerStream = row.stream
		assert.Equal(t, row.want, grpclimit.UsualOutcome(c, row.code), "%v, stream %v", row.code, row.stream)
	}
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
	_, err = grpclimit.NewInflight(l, everyone, &grpclimit.InflightOptions{KeyCode: 99})
	assert.EqualError(t, err, "grpclimit: InflightOptions.KeyCode is 99, which does not exist")
	assert.PanicsWithError(t, "grpclimit: this Inflight is nil or zero: make one with NewInflight", func() {
		new(grpclimit.Inflight[string]).UnaryServerInterceptor()
	})
}
