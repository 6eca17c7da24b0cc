package grpclimit_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
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

func shedding(t testing.TB, limit int, opts *inflight.Options[string], o *grpclimit.InflightOptions) *grpclimit.Interceptor {
	t.Helper()
	return ratelimit.Must(grpclimit.NewInflight(ratelimit.Must(inflight.New(limit, opts)), everyone, o))
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
	i.RefuseHeld()
	assert.Equal(t, codes.OK, call(context.Background(), client).code, "it holds no calls, and serves those that come")
	assert.Equal(t, httplimit.Stats{Allowed: 3, Denied: 2}, i.Stats())
}

// Package edge tests each refusal's cause.
func TestInflightRefusals(t *testing.T) {
	failing := func(err error) func(*grpclimit.Call) (string, error) {
		return func(*grpclimit.Call) (string, error) { return "", err }
	}
	for name, row := range map[string]struct {
		key   func(*grpclimit.Call) (string, error)
		opts  *grpclimit.InflightOptions
		want  codes.Code
		stats httplimit.Stats // with Exceeds, the trailer forbids a retry
	}{
		"more than there is": {everyone, &grpclimit.InflightOptions{Units: func(*grpclimit.Call) int { return 2 }}, codes.ResourceExhausted, httplimit.Stats{Exceeds: 1}},
		"no key":             {failing(keyfunc.ErrNoKey), nil, codes.InvalidArgument, httplimit.Stats{Rejected: 1}},
		"no key, by choice":  {failing(keyfunc.ErrNoKey), &grpclimit.InflightOptions{KeyCode: codes.Unauthenticated}, codes.Unauthenticated, httplimit.Stats{Rejected: 1}},
		"another error":      {failing(errors.New(secret)), nil, codes.Internal, httplimit.Stats{Failed: 1}},
		"skipped":            {failing(errors.New(secret)), &grpclimit.InflightOptions{Skip: func(*grpclimit.Call) bool { return true }}, codes.OK, httplimit.Stats{Skipped: 1}},
		"OnRefused": {failing(keyfunc.ErrNoKey), &grpclimit.InflightOptions{OnRefused: func(_ *grpclimit.Call, err error, s *status.Status) *status.Status {
			assert.ErrorIs(t, err, keyfunc.ErrNoKey)
			assert.Equal(t, codes.InvalidArgument, s.Code())
			return status.New(codes.Aborted, "")
		}}, codes.Aborted, httplimit.Stats{Rejected: 1}},
		"OnRefused with OK": {failing(keyfunc.ErrNoKey), &grpclimit.InflightOptions{OnRefused: func(*grpclimit.Call, error, *status.Status) *status.Status {
			return status.New(codes.OK, "")
		}}, codes.InvalidArgument, httplimit.Stats{Rejected: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			i := ratelimit.Must(grpclimit.NewInflight(ratelimit.Must(inflight.New[string](1, nil)), row.key, row.opts))
			a := call(t.Context(), serve(t, new(service), with(i)...))
			assert.Equal(t, row.want, a.code)
			assert.NotContains(t, a.message, secret)
			assert.Equal(t, row.stats.Exceeds > 0, slices.Equal(a.pushback, []string{"-1"}))
			assert.Equal(t, row.stats, i.Stats())
		})
	}
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
	boom := func(context.Context, any) (any, error) { panic("handler") }
	assert.PanicsWithValue(t, "handler", func() { _, _ = call(context.Background(), nil, info, boom) })
	assert.PanicsWithValue(t, "Outcome", func() {
		_, _ = call(context.Background(), nil, info, answering(status.Error(codes.NotFound, "")))
	})
	_, err := call(context.Background(), nil, info, answering(nil))
	require.NoError(t, err)
	assert.Equal(t, []inflight.Outcome{inflight.Cancelled, inflight.Success, inflight.Success}, outcomes)

	call = shedding(t, 1, nil, nil).UnaryServerInterceptor()
	for range 2 { // the limit is fixed
		assert.PanicsWithValue(t, "handler", func() { _, _ = call(context.Background(), nil, info, boom) })
	}
}

// Package edge tests each code's outcome.
func TestAdaptiveLimitsLearnFromOutcomes(t *testing.T) {
	for _, row := range []struct {
		ctx    context.Context
		stream bool
		err    error
		server inflight.Outcome
		client inflight.Outcome
	}{
		{t.Context(), false, nil, inflight.Success, inflight.Success},
		{t.Context(), true, nil, inflight.Ignored, inflight.Ignored},
		{t.Context(), false, status.Error(codes.Unavailable, ""), inflight.Dropped, inflight.Dropped},
		{t.Context(), false, status.Error(codes.ResourceExhausted, ""), inflight.Dropped, inflight.Dropped},
		{cancelled(), false, nil, inflight.Cancelled, inflight.Cancelled},
		// A server may return this code before the client's context ends.
		{until(t, time.Hour), false, status.Error(codes.DeadlineExceeded, ""), inflight.Cancelled, inflight.Cancelled},
		{t.Context(), false, errors.New("no status"), inflight.Cancelled, inflight.Cancelled},
		{t.Context(), false, fmt.Errorf("not sent: %w", ratelimit.ErrLimited), inflight.Cancelled, inflight.Ignored},
		{t.Context(), false, fmt.Errorf("not sent: %w", ratelimit.ErrTableFull), inflight.Cancelled, inflight.Ignored},
	} {
		served := grpclimit.NewCall(row.ctx, "", nil)
		served.ServerStream = row.stream
		assert.Equal(t, row.server, grpclimit.UsualOutcome(served, status.Code(row.err)), "%v", row.err)
		assert.Equal(t, row.client, grpclimit.ResponseOutcome(grpclimit.NewClientCall(row.ctx, row.stream), row.err), "%v", row.err)
	}
}

// An inner limiter refuses calls in all ways. The handler returns the refusals, changes them or hides them.
func TestARefusalInsideIsNoOverloadOfTheLimitAround(t *testing.T) {
	busy := shedding(t, 1, nil, nil)
	full := func(next grpc.UnaryHandler) grpc.UnaryHandler {
		return func(ctx context.Context, req any) (any, error) {
			return busy.UnaryServerInterceptor()(ctx, req, info, next)
		}
	}
	none := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	_ = none.Allow(netip.Addr{}, 1)
	rate := ratelimit.Must(grpclimit.New(ratelimit.Map(none, func(*grpclimit.Call) (netip.Addr, error) { return netip.Addr{}, nil }), nil))
	limited := ratelimit.Must(ratelimit.All(ratelimit.By(none, func(*grpclimit.Call) (netip.Addr, error) { return netip.Addr{}, nil })))
	client := ratelimit.Must(grpclimit.NewClient(limited, &grpclimit.ClientOptions{MaxWait: time.Nanosecond}))
	for name, row := range map[string]struct {
		inner grpc.UnaryHandler
		want  inflight.Outcome
	}{
		"in flight": {full(answering(nil)), inflight.Ignored},
		"rate": {func(ctx context.Context, req any) (any, error) {
			return rate.UnaryServerInterceptor()(ctx, req, info, answering(nil))
		}, inflight.Ignored},
		"client": {func(ctx context.Context, _ any) (any, error) {
			err := client.UnaryClientInterceptor()(ctx, "/a.B/C", nil, nil, nil, nil)
			require.Error(t, err)
			return nil, status.Error(codes.Unavailable, "the other server is not available")
		}, inflight.Ignored},
		"none": {answering(status.Error(codes.Unavailable, "")), inflight.Dropped},
	} {
		t.Run(name, func(t *testing.T) {
			var got []inflight.Outcome
			outer := shedding(t, 1, nil, &grpclimit.InflightOptions{Outcome: func(_ *grpclimit.Call, _ codes.Code, usual inflight.Outcome) inflight.Outcome {
				got = append(got, usual)
				return got[0]
			}})
			_, _ = busy.UnaryServerInterceptor()(context.Background(), nil, info, func(ctx context.Context, _ any) (any, error) {
				_, err := outer.UnaryServerInterceptor()(context.Background(), nil, info, row.inner)
				require.Error(t, err)
				return nil, nil
			})
			assert.Equal(t, []inflight.Outcome{row.want}, got)
		})
	}
}

// A stream's time shows nothing, so the stream leaves the learnt limit to calls, at a
// server and at a client. If Outcome is set, it decides at the stream's end, and the stream
// counts until then. Another call, made by the handler, shows whether there is room.
func TestAStreamLeavesTheLearntLimitToCalls(t *testing.T) {
	for name, row := range map[string]struct{ stream, outcome, passes bool }{
		"a call": {false, false, false}, "a stream": {true, false, true}, "a stream, with Outcome": {true, true, false},
	} {
		for _, atClient := range []bool{false, true} {
			bubble(t, name, func(t *testing.T) {
				l := ratelimit.Must(inflight.New(2, &inflight.Options[string]{Adaptive: inflight.Learn(&inflight.LearnOptions{Start: 1})}))
				served, sent := grpclimit.InflightOptions{}, grpclimit.ClientOptions{Inflight: l}
				if row.outcome {
					served.Outcome = func(_ *grpclimit.Call, _ codes.Code, usual inflight.Outcome) inflight.Outcome { return usual }
					sent.Outcome = func(_ *grpclimit.Call, _ error, usual inflight.Outcome) inflight.Outcome { return usual }
				}
				serving, dialling := with(ratelimit.Must(grpclimit.NewInflight(l, everyone, &served))), []grpc.DialOption(nil)
				if atClient {
					serving = nil
					_, dialling = paced(t, nil, sent)
				}
				var client testgrpc.TestServiceClient
				another := codes.Unknown
				s := &service{stream: func(s testgrpc.TestService_FullDuplexCallServer) error {
					another = call(s.Context(), client).code
					return nil
				}, unary: func(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
					if r.FillUsername { // the outer call
						another = call(ctx, client).code
					}
					return new(testgrpc.SimpleResponse), nil
				}}
				client = inBubble(t, s.server(serving...), dialling...)
				if row.stream {
					open(t.Context(), client, 0)
				} else {
					_, _ = client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{FillUsername: true})
				}
				assert.NotEqual(t, codes.Unknown, another)
				assert.Equal(t, row.passes, another == codes.OK)
			})
		}
	}
}

// If a client does not receive the response, or sends a malformed
// message, the call is charged, and an adaptive limit ignores it.
func TestWhatAStreamsClientCausesIsCharged(t *testing.T) {
	broken := status.Error(codes.Internal, "cannot unmarshal")
	for name, row := range map[string]struct {
		heading, sending, receiving error
		charged                     bool
		outcome                     inflight.Outcome
	}{
		"the client has left before the headers": {status.Error(codes.Unavailable, "transport is closing"), nil, nil, true, inflight.Ignored},
		"the client has closed the connection":   {nil, status.Error(codes.Unavailable, "transport is closing"), nil, true, inflight.Ignored},
		"the client has cancelled":               {nil, status.Error(codes.Canceled, "context canceled"), nil, true, inflight.Ignored},
		"the message cannot be encoded":          {nil, status.Error(codes.Internal, "grpc: error while marshaling"), nil, false, inflight.Cancelled},
		"the client breaks a message":            {nil, nil, broken, true, inflight.Ignored},
	} {
		for _, hidden := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				handler := func(_ any, s grpc.ServerStream) error {
					err := cmp.Or(s.SendHeader(nil), s.SendMsg(nil))
					if row.receiving != nil {
						err = s.RecvMsg(nil)
					}
					assert.Equal(t, errors.Join(row.heading, row.sending, row.receiving).Error(), err.Error())
					if hidden {
						return errors.New("sending failed")
					}
					return err
				}
				stream := func() *fakeStream {
					return &fakeStream{heading: row.heading, sending: row.sending, received: []error{row.receiving}}
				}
				l, left := budget(t)
				kind := &grpc.StreamServerInfo{IsServerStream: row.receiving == nil, IsClientStream: row.receiving != nil}
				i := interceptor(t, l, grpclimit.Options{Settle: grpclimit.RefundServerErrors})
				err := i.StreamServerInterceptor()(nil, stream(), kind, handler)
				assert.Equal(t, hidden || row.charged, left() == 9)
				var learnt []inflight.Outcome
				adaptive := shedding(t, 1, nil, &grpclimit.InflightOptions{Outcome: func(_ *grpclimit.Call, _ codes.Code, usual inflight.Outcome) inflight.Outcome {
					learnt = append(learnt, usual)
					return learnt[0]
				}})
				again := adaptive.StreamServerInterceptor()(nil, stream(), kind, handler)
				assert.Equal(t, err, again)
				assert.Equal(t, []inflight.Outcome{row.outcome}, learnt)
			})
		}
	}
}

// Under a Concurrent limit, a call or a stream holds its unit until its handler
// ends, however long it runs. If the unit is lost, the handler's context ends.
func TestACallHoldsItsUnitUntilItsHandlerEnds(t *testing.T) {
	charged := grpclimit.ChargeOnly(codes.OK)
	for name, row := range map[string]struct {
		stream bool
		settle func(*grpclimit.Call, codes.Code, int) int
	}{"unary": {false, nil}, "stream": {true, nil}, "settled stream": {true, charged}} {
		bubble(t, name, func(t *testing.T) {
			calls := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(1, time.Minute), nil))
			i := interceptor(t, ratelimit.Must(ratelimit.All(ratelimit.By(calls, everyone))), grpclimit.Options{LimitTrailers: true, Settle: row.settle})
			end, ended := make(chan bool), make(chan error, 1)
			handle := func(ctx context.Context) error {
				select {
				case <-end:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			call := func() (err error) {
				if row.stream {
					return i.StreamServerInterceptor()(nil, &fakeStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/a/b"},
						func(_ any, s grpc.ServerStream) error { return handle(s.Context()) })
				}
				_, err = i.UnaryServerInterceptor()(t.Context(), nil, info, func(ctx context.Context, _ any) (any, error) { return nil, handle(ctx) })
				return err
			}
			for n := range 3 {
				go func() { ended <- call() }()
				time.Sleep(time.Hour) // sixty times as long as the hold
				require.Equal(t, codes.ResourceExhausted, status.Code(call()))
				if n < 2 {
					end <- true
					require.NoError(t, <-ended)
					continue
				}
				require.NoError(t, calls.Reset(t.Context(), "everyone"))
				time.Sleep(time.Minute)
				require.ErrorIs(t, <-ended, ratelimit.ErrLost)
			}
		})
	}
}
