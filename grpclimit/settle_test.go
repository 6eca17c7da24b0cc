package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/weir-go/ratelimit/ratelimittest"
)

// budget returns a limiter with ten calls an hour, and a function that returns the remaining calls.
func budget(t *testing.T) (l ratelimit.Limiter[*grpclimit.Call], left func() int) {
	t.Helper()
	keyed := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(10)), &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
	return ratelimit.Map(keyed, everyone), func() int {
		d, err := keyed.Peek(context.Background(), "everyone", 0)
		require.NoError(t, err)
		return d.Remaining
	}
}

// answering returns a handler that returns err.
func answering(err error) grpc.UnaryHandler {
	return func(context.Context, any) (any, error) { return nil, err }
}

var info = &grpc.UnaryServerInfo{FullMethod: "/pkg.Service/Method"}

func TestACallIsChargedByItsEnd(t *testing.T) {
	logins := grpclimit.ChargeOnly(codes.Unauthenticated, codes.PermissionDenied)
	broken, gone := status.Error(codes.Internal, "cannot unmarshal"), status.Error(codes.Unavailable, "")
	for name, row := range map[string]struct {
		settle   func(*grpclimit.Call, codes.Code, int) int
		ctx      context.Context
		err      error
		received error // RecvMsg's result for a stream's second message; nil for a unary call
		charged  int
	}{
		"a login":                                {logins, context.Background(), nil, nil, 0},
		"a login that fails":                     {logins, context.Background(), status.Error(codes.Unauthenticated, ""), nil, 1},
		"a context's error, whose code counts":   {grpclimit.ChargeOnly(codes.Canceled), context.Background(), fmt.Errorf("query: %w", context.Canceled), nil, 1},
		"another status":                         {logins, context.Background(), status.Error(codes.NotFound, ""), nil, 0},
		"no status":                              {logins, context.Background(), errors.New("plain"), nil, 0},
		"a status that is wrapped":               {logins, context.Background(), fmt.Errorf("login: %w", status.Error(codes.PermissionDenied, "")), nil, 1},
		"Unavailable":                            {grpclimit.RefundServerErrors, context.Background(), gone, nil, 0},
		"Internal":                               {grpclimit.RefundServerErrors, context.Background(), status.Error(codes.Internal, ""), nil, 0},
		"DataLoss":                               {grpclimit.RefundServerErrors, context.Background(), status.Error(codes.DataLoss, ""), nil, 0},
		"OK":                                     {grpclimit.RefundServerErrors, context.Background(), nil, nil, 1},
		"InvalidArgument":                        {grpclimit.RefundServerErrors, context.Background(), status.Error(codes.InvalidArgument, ""), nil, 1},
		"Unknown, which a plain error is":        {grpclimit.RefundServerErrors, context.Background(), errors.New("no such user"), nil, 1},
		"DeadlineExceeded, which the client set": {grpclimit.RefundServerErrors, context.Background(), status.Error(codes.DeadlineExceeded, ""), nil, 1},
		"a context's error without a status":     {grpclimit.RefundServerErrors, context.Background(), fmt.Errorf("query: %w", context.Canceled), nil, 1},
		"Unavailable after the client has gone":  {grpclimit.RefundServerErrors, cancelled(), gone, nil, 1},
		"Unavailable after the deadline":         {grpclimit.RefundServerErrors, until(t, -time.Hour), gone, nil, 1},
		"a message that the client broke":        {grpclimit.RefundServerErrors, context.Background(), broken, broken, 1},
		"the same, behind a login that fails":    {logins, context.Background(), status.Error(codes.Unauthenticated, ""), broken, 1},
		"the same, behind the handler's error":   {grpclimit.RefundServerErrors, context.Background(), gone, broken, 1},
		"a stream that fails to log in":          {logins, context.Background(), status.Error(codes.Unauthenticated, ""), io.EOF, 1},
		"a stream's end, which is no failure":    {grpclimit.RefundServerErrors, context.Background(), gone, io.EOF, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, left := budget(t)
			i, err := interceptor(t, l, grpclimit.Options{Settle: row.settle}), error(nil)
			if row.received == nil {
				_, err = i.UnaryServerInterceptor()(row.ctx, nil, info, answering(row.err))
			} else {
				err = i.StreamServerInterceptor()(nil, &fakeStream{received: []error{nil, row.received}}, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
					require.NoError(t, s.RecvMsg(nil))
					require.Equal(t, row.received, s.RecvMsg(nil))
					return row.err
				})
			}
			assert.Equal(t, row.err, err, "the handler's own error goes on")
			assert.Equal(t, 10-row.charged, left())
		})
	}
}

func TestAPanicGoesOnAndLosesNoBudget(t *testing.T) {
	boom := func() { panic("boom") }
	for name, row := range map[string]struct {
		opts grpclimit.Options
		left int // from a budget of 10, after a call and a stream
	}{
		"a handler's is a server error": {grpclimit.Options{Settle: func(c *grpclimit.Call, code codes.Code, cost int) int {
			assert.Equal(t, codes.Internal, code)
			return grpclimit.RefundServerErrors(c, code, cost)
		}}, 10},
		"OnDecision: the handler is not reached": {grpclimit.Options{Settle: grpclimit.ChargeOnly(codes.OK), OnDecision: func(grpclimit.Event) { boom() }}, 10},
		"Settle: the whole cost stays charged":   {grpclimit.Options{Settle: func(*grpclimit.Call, codes.Code, int) int { boom(); return 0 }}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			l, left := budget(t)
			i := interceptor(t, l, row.opts)
			assert.PanicsWithValue(t, "boom", func() {
				_, _ = i.UnaryServerInterceptor()(t.Context(), nil, info, func(context.Context, any) (any, error) { boom(); return nil, nil })
			})
			assert.PanicsWithValue(t, "boom", func() {
				_ = i.StreamServerInterceptor()(nil, &fakeStream{}, &grpc.StreamServerInfo{}, func(any, grpc.ServerStream) error { boom(); return nil })
			})
			assert.Equal(t, row.left, left())
		})
	}
}

func TestARefusalInsideThatTheClientCausedIsNoServerError(t *testing.T) {
	for name, row := range map[string]struct {
		err     error
		charged int
	}{
		"the table is full":    {ratelimit.ErrTableFull, 1},
		"the cost is negative": {ratelimit.ErrNegativeCost, 1},
		"the store is down":    {ratelimit.ErrUnavailable, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, left := budget(t)
			outer := interceptor(t, l, grpclimit.Options{Settle: grpclimit.RefundServerErrors})
			client := serve(t, &service{}, with(outer, interceptor(t, &stub{err: row.err}, grpclimit.Options{}))...)
			assert.NotEqual(t, codes.OK, call(context.Background(), client).code)
			assert.Equal(t, 10-row.charged, left())
		})
	}
}

// SettleResponse computes a call's cost from its response's contents.
func TestTheResponseGivesTheCost(t *testing.T) {
	message := &testgrpc.SimpleResponse{Username: "ann"}
	unary := func(err error) func(i *grpclimit.Interceptor) error {
		return func(i *grpclimit.Interceptor) error {
			resp, got := i.UnaryServerInterceptor()(context.Background(), nil, info, func(context.Context, any) (any, error) { return message, err })
			assert.Equal(t, message, resp)
			return got
		}
	}
	for name, row := range map[string]struct {
		call func(i *grpclimit.Interceptor) error
		want grpclimit.Response
	}{
		"unary":            {unary(nil), grpclimit.Response{Code: codes.OK, Message: message, Sent: 1}},
		"unary that fails": {unary(status.Error(codes.NotFound, "")), grpclimit.Response{Code: codes.NotFound}},
		"stream": {func(i *grpclimit.Interceptor) error {
			var late grpc.ServerStream
			err := i.StreamServerInterceptor()(nil, &fakeStream{}, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
				late = s
				return errors.Join(s.SendMsg(nil), s.SendMsg(nil), s.SendMsg(message))
			})
			return errors.Join(err, late.SendMsg(nil)) // a goroutine of the handler may send later, and does not block
		}, grpclimit.Response{Code: codes.OK, Message: message, Sent: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			l, left := budget(t)
			var seen grpclimit.Response
			err := row.call(interceptor(t, l, grpclimit.Options{SettleResponse: func(_ *grpclimit.Call, resp grpclimit.Response, cost int) int {
				seen = resp
				return 2 * cost * resp.Sent
			}}))
			assert.Equal(t, row.want.Code, status.Code(err))
			assert.Equal(t, row.want, seen)
			assert.Equal(t, 10-2*row.want.Sent, left())
		})
	}
	_, err := grpclimit.New(limiterOf(t, nil, ratelimit.Unlimited()), &grpclimit.Options{
		Settle:         grpclimit.RefundServerErrors,
		SettleResponse: func(*grpclimit.Call, grpclimit.Response, int) int { return 0 },
	})
	assert.EqualError(t, err, "grpclimit: Options.Settle and Options.SettleResponse are both given")
}

// A client hangs up before the answer, or its deadline passes. Its call could have ended in any
// way. A client also ends a watch by leaving. If it has received messages, they are the answer.
func TestACallWhoseClientLeavesBeforeTheAnswerIsCharged(t *testing.T) {
	for name, row := range map[string]struct {
		charged codes.Code
		message bool  // whether a stream has sent a message before the client leaves; without one, the call may also be unary
		returns error // the handler's error after the client has left
		want    int
	}{
		"a success counts":                          {codes.OK, false, context.Canceled, 1},
		"a success counts, after a message":         {codes.OK, true, context.Canceled, 1},
		"a failure counts":                          {codes.Unauthenticated, false, context.Canceled, 1},
		"a failure counts, after a message":         {codes.Unauthenticated, true, context.Canceled, 0},
		"the handler has an error of its own":       {codes.OK, false, status.Error(codes.Internal, ""), 1},
		"the handler has the status that counts":    {codes.Unauthenticated, false, status.Error(codes.Unauthenticated, ""), 1},
		"the handler succeeds, and failures count":  {codes.Unauthenticated, false, nil, 0},
		"the handler succeeds, and successes count": {codes.OK, false, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l, left := budget(t)
			i := interceptor(t, l, grpclimit.Options{Settle: grpclimit.ChargeOnly(row.charged)})
			began, ended := make(chan struct{}), make(chan struct{})
			end := func(ctx context.Context) error {
				close(began)
				<-ctx.Done()
				return row.returns
			}
			client := serve(t, &service{
				unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
					return &testgrpc.SimpleResponse{}, end(ctx)
				},
				stream: func(s testgrpc.TestService_FullDuplexCallServer) error {
					if row.message {
						assert.NoError(t, s.Send(&testgrpc.StreamingOutputCallResponse{}))
					}
					return end(s.Context())
				},
			}, grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				defer close(ended)
				return i.UnaryServerInterceptor()(ctx, req, info, h)
			}), grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
				defer close(ended)
				return i.StreamServerInterceptor()(srv, s, info, h)
			}))
			tries := []func(context.Context){func(ctx context.Context) { open(ctx, client, 0) }}
			if !row.message {
				tries = append(tries, func(ctx context.Context) { call(ctx, client) })
			}
			for n, try := range tries {
				began, ended = make(chan struct{}), make(chan struct{})
				ctx, hangUp := context.WithTimeout(t.Context(), time.Minute)
				done := make(chan struct{})
				go func() { defer close(done); try(ctx) }()
				<-began
				hangUp()
				<-done
				<-ended
				assert.Equal(t, 10-row.want*(n+1), left())
			}
		})
	}
}
