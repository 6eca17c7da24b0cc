package connectlimit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/connectlimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func hourly(t *testing.T, n int, opts *connectlimit.Options) (*connectlimit.Interceptor, func() int) {
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(n)), &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
	i := ratelimit.Must(connectlimit.New(ratelimit.Map(l, everyone), opts))
	return i, func() int {
		d, err := l.Peek(t.Context(), "everyone", 1)
		require.NoError(t, err)
		return d.Remaining
	}
}

func TestTheOuterInterceptorGivesBackWhatTheInnerOneRefuses(t *testing.T) {
	for name, opts := range map[string]*connectlimit.Options{
		"charged": nil, "settled": {Settle: connectlimit.RefundServerErrors}, "a shadow": {Shadow: true}, "with fields": {LimitFields: true},
	} {
		for protocol, options := range protocols {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				outer, left := hourly(t, 100, opts)
				between, _ := hourly(t, 60, opts)
				inner, _ := hourly(t, 2, nil)
				c := newClient(service(t, outer, between, inner), options...)
				served := 0
				for range 25 {
					if c.send(t.Context(), "hello") == nil {
						served++
					}
					if _, err := c.stream(t.Context()); err == nil {
						served++
					}
				}
				assert.Equal(t, 2, served)
				assert.Equal(t, 98, left())
			})
		}
	}
}

func TestMiddlewareOfHTTPGivesBackWhatAnInterceptorRefuses(t *testing.T) {
	for protocol, options := range protocols {
		t.Run(protocol, func(t *testing.T) {
			keyed := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(100)), &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
			m := ratelimit.Must(httplimit.New(ratelimit.Map(keyed, func(*http.Request) (string, error) { return "k", nil }), nil))
			inner, _ := hourly(t, 1, nil)
			s := service(t, inner)
			s.Config.Handler = m.Wrap(s.Config.Handler)
			c := newClient(s, options...)
			served := 0
			for range 20 {
				if c.send(t.Context(), "hello") == nil {
					served++
				}
			}
			assert.Equal(t, 1, served)
			d, err := keyed.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			assert.Equal(t, 99, d.Remaining)
		})
	}
}

func TestACallWhoseClientLeavesBeforeTheAnswerIsCharged(t *testing.T) {
	for _, row := range []struct {
		name     string
		charged  connect.Code
		returns  error
		messages int
		want     int
	}{
		{"a success counts", 0, context.Canceled, 0, 1},
		{"a failure counts", connect.CodeUnauthenticated, context.Canceled, 0, 1},
		{"an error of its own", 0, connect.NewError(connect.CodeInternal, errors.New("x")), 0, 1},
		{"served all the same", connect.CodeUnauthenticated, nil, 0, 0},
		{"a message was sent, and successes count", 0, context.Canceled, 1, 1},
		{"a message was sent, and failures count", connect.CodeUnauthenticated, context.Canceled, 1, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			i, left := hourly(t, 10, &connectlimit.Options{Settle: connectlimit.ChargeOnly(row.charged)})
			sent, ended := make(chan struct{}), make(chan struct{})
			h := connect.NewServerStreamHandler(countProcedure, func(ctx context.Context, r *connect.Request[text], s *connect.ServerStream[text]) error {
				for range row.messages {
					assert.NoError(t, s.Send(r.Msg))
				}
				close(sent)
				<-ctx.Done()
				return row.returns
			}, connect.WithInterceptors(i))
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(ended)
				h.ServeHTTP(w, r)
			}))
			s.EnableHTTP2 = true
			s.StartTLS()
			defer s.Close()
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			go func() {
				if stream, err := newClient(s).count.CallServerStream(ctx, connect.NewRequest(wrapperspb.String("x"))); err == nil {
					for stream.Receive() {
					}
					_ = stream.Close()
				}
			}()
			<-sent
			hangUp()
			<-ended
			assert.Equal(t, 10-row.want, left())
		})
	}
	i, left := hourly(t, 10, &connectlimit.Options{Settle: connectlimit.ChargeOnly(connect.CodeUnauthenticated)})
	ctx, hangUp := context.WithCancel(t.Context())
	_, err := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
		hangUp()
		return nil, context.Canceled
	})(ctx, connect.NewRequest(wrapperspb.String("")))
	require.Error(t, err)
	assert.Equal(t, 9, left(), "a unary call")
	i, left = hourly(t, 10, &connectlimit.Options{Settle: connectlimit.RefundServerErrors})
	ctx, hangUp = context.WithCancel(t.Context())
	_, err = i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
		hangUp()
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the backend's answer is not awaited"))
	})(ctx, aRequest)
	require.Error(t, err)
	assert.Equal(t, 9, left(), "an error that the client's leaving may have caused")
}

// A handler may pass on several calls. If one of them is served, the outer charge stays.
func TestACallServedInPartIsCharged(t *testing.T) {
	for name, opts := range map[string]*connectlimit.Options{"charged": nil, "settled": {Settle: connectlimit.RefundServerErrors}} {
		outer, left := hourly(t, 100, nil)
		inner, _ := hourly(t, 1, opts)
		part := inner.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, nil })
		_, err := outer.WrapUnary(func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			_, err := part(ctx, r)
			assert.NoError(t, err)
			return part(ctx, r)
		})(t.Context(), aRequest)
		assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
		assert.Equal(t, 99, left(), name)
	}
}

func TestAShadowHoldsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerSecond(1), 9), nil))
		stack := ratelimit.Must(ratelimit.All(ratelimit.By(l, everyone)))
		i := ratelimit.Must(connectlimit.New(stack, &connectlimit.Options{Shadow: true}))
		call := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, nil })
		start := time.Now()
		for range 3 {
			_, err := call(t.Context(), aRequest)
			require.NoError(t, err)
		}
		assert.Zero(t, time.Since(start))
		assert.Equal(t, httplimit.Stats{Allowed: 3}, i.Stats())
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := call(short, aRequest)
		require.NoError(t, err)
		assert.Equal(t, httplimit.Stats{Allowed: 3, Denied: 1}, i.Stats(), "its deadline is before its turn")
	})
}

func TestTheWaitInWholeSecondsIsRoundedUp(t *testing.T) {
	i, _ := keyed(t, ratelimit.TokenBucket(ratelimit.PerMinute(40), 1), everyone, nil)
	call := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, nil })
	_, err := call(t.Context(), aRequest)
	require.NoError(t, err)
	_, err = call(t.Context(), aRequest)
	assert.Equal(t, []string{"2", "1500"}, []string{meta(err).Get("Retry-After"), meta(err).Get("Grpc-Retry-Pushback-Ms")})
}

// aRequest is a call as a handler's interceptor receives it.
var aRequest = connect.NewRequest(wrapperspb.String(""))

func TestAHeldCallThatIsRefusedIsReportedAsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []httplimit.Outcome
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[string]{MaxWaiting: 1}))
		i := ratelimit.Must(connectlimit.New(ratelimit.Map(l, everyone), &connectlimit.Options{MaxHold: time.Minute, LimitFields: true,
			OnDecision: func(e connectlimit.Event) { seen = append(seen, e.Outcome) }}))
		call := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, nil })
		_, err := call(t.Context(), aRequest)
		require.NoError(t, err)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := call(ctx, aRequest)
			left <- err
		}()
		synctest.Wait()
		_, err = call(t.Context(), aRequest) // one call more than may wait
		assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
		assert.Len(t, meta(err)["Ratelimit-Policy"], 1)
		leave()
		assert.Equal(t, connect.CodeCanceled, connect.CodeOf(<-left))
		go func() { // this call is held until RefuseHeld
			_, err := call(t.Context(), aRequest)
			left <- err
		}()
		synctest.Wait()
		i.RefuseHeld()
		assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(<-left))
		assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 2, Rejected: 1}, i.Stats())
		assert.Equal(t, []httplimit.Outcome{httplimit.OutcomeAllowed, httplimit.OutcomeDenied, httplimit.OutcomeRejected, httplimit.OutcomeDenied}, seen)
		new(connectlimit.Interceptor).RefuseHeld()
	})
}

// An interceptor cannot extend a server's timeouts. So it denies a call with a delay beyond one of them.
func TestACallIsNotHeldForAsLongAsATimeoutOfTheServer(t *testing.T) {
	for name, server := range map[string]*http.Server{"write": {WriteTimeout: 30 * time.Minute}, "read": {ReadTimeout: 30 * time.Minute}} {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(1), 1), nil))
		i := ratelimit.Must(connectlimit.New(ratelimit.Map(l, everyone), &connectlimit.Options{MaxHold: 2 * time.Hour}))
		call := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, nil })
		ctx := context.WithValue(t.Context(), http.ServerContextKey, server)
		_, err := call(ctx, aRequest)
		require.NoError(t, err)
		_, err = call(ctx, aRequest)
		assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), name)
	}
}

func TestACostBelowZeroRefusesTheCallAsMalformed(t *testing.T) {
	i, left := hourly(t, 1, &connectlimit.Options{Cost: func(*connectlimit.Call) int { return -1 }, KeyCode: connect.CodeUnauthenticated, FailOpen: true})
	for _, options := range protocols {
		c := newClient(service(t, i), options...)
		err := c.send(t.Context(), "hello")
		assert.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
		assert.Empty(t, meta(err)["Www-Authenticate"])
	}
	assert.Equal(t, httplimit.Stats{Rejected: 3}, i.Stats())
	assert.Equal(t, 1, left())
}

func TestCallsOfHealthAndReflectionTakeNoPermits(t *testing.T) {
	l := ratelimit.Must(inflight.New[string](1, nil))
	_, err := l.TryAcquire("everyone", 1)
	require.NoError(t, err)
	i := ratelimit.Must(connectlimit.NewInflight(l, everyone, nil))
	mux := http.NewServeMux()
	for _, procedure := range []string{"/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/X", "/grpc.reflection.v1alpha.ServerReflection/X", echoProcedure} {
		mux.Handle(procedure, connect.NewUnaryHandler(procedure, func(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
			return connect.NewResponse(r.Msg), nil
		}, connect.WithInterceptors(i)))
	}
	s := httptest.NewServer(mux)
	defer s.Close()
	codes := map[connect.Code]int{}
	for _, procedure := range []string{"/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/X", "/grpc.reflection.v1alpha.ServerReflection/X", echoProcedure} {
		_, err := connect.NewClient[text, text](s.Client(), s.URL+procedure).CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("x")))
		if err == nil {
			codes[0]++
		} else {
			codes[connect.CodeOf(err)]++
		}
	}
	assert.Equal(t, map[connect.Code]int{0: 3, connect.CodeUnavailable: 1}, codes)
}

func TestPerIPBehindAProxyIsWarnedOfOnce(t *testing.T) {
	var log bytes.Buffer
	i := ratelimit.Must(connectlimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(100)), &connectlimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	c := newClient(service(t, i))
	require.NoError(t, c.send(t.Context(), "hello"))
	assert.Empty(t, log.String())
	for range 3 {
		require.NoError(t, c.send(t.Context(), "hello", "Forwarded", "for=192.0.2.1"))
	}
	assert.Equal(t, 1, strings.Count(log.String(), `level=WARN msg="connectlimit: PerIP gives one budget to all clients of a proxy: use New with ClientIP" field=Forwarded`))
}
