package connectlimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
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
	"github.com/weir-go/ratelimit/keyfunc"
)

func everyone(*connectlimit.Call) (string, error) { return "everyone", nil }

func TestServicesAreSkipped(t *testing.T) {
	skip := connectlimit.SkipServices("test.Health")
	for procedure, want := range map[string]bool{
		"/test.Health/Check": true, "/a/b": false, "/test.Health/": false, "/test.Healthy/Check": false, "test.Health/Check": false, "": false, "/": false,
	} {
		assert.Equal(t, want, skip(connectlimit.NewCall(t.Context(), procedure, nil, nil)), procedure)
	}
	service, err := connectlimit.Service(connectlimit.NewCall(t.Context(), "/test.Echo/Echo", nil, nil))
	require.NoError(t, err)
	assert.Equal(t, "test.Echo", service)
	_, err = connectlimit.Service(connectlimit.NewCall(t.Context(), "Echo", nil, nil))
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
}

func TestHeaderHoldsTheAddress(t *testing.T) {
	key := ratelimit.Must(connectlimit.ClientIP(httplimit.ClientIPOptions{Header: "x-real-ip", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}))
	c := connectlimit.NewCall(t.Context(), "/a/b", http.Header{"X-Real-Ip": {"192.0.2.7"}}, nil)
	c.Peer = connect.Peer{Addr: "10.1.2.3:4711"}
	addr, err := key(c)
	require.NoError(t, err)
	assert.Equal(t, "192.0.2.7", addr.String())
	c.Peer = connect.Peer{Addr: "198.51.100.1:4711"}
	addr, err = key(c)
	require.NoError(t, err)
	assert.Equal(t, "198.51.100.1", addr.String(), "not trusted")
	_, err = connectlimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: -1})
	assert.ErrorContains(t, err, "connectlimit: ")
}

// SettleResponse computes a call's cost from its response's contents.
func TestTheResponseGivesTheCost(t *testing.T) {
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			var got []connectlimit.Response
			i, l := keyed(t, ratelimit.FixedWindow(ratelimit.PerHour(100)), everyone, &connectlimit.Options{
				SettleResponse: func(_ *connectlimit.Call, resp connectlimit.Response, cost int) int {
					got = append(got, resp)
					return cost + 10*resp.Sent
				},
			})
			c := newClient(service(t, i), options...)
			require.NoError(t, c.send(t.Context(), "hello"))
			n, err := c.stream(t.Context())
			require.NoError(t, err)
			require.Equal(t, 3, n)
			require.Error(t, c.send(t.Context(), "fail"))
			require.Len(t, got, 3)
			assert.Equal(t, "hello", got[0].Message.(*text).Value)
			assert.Equal(t, 3, got[1].Sent)
			assert.Equal(t, "x", got[1].Message.(*text).Value)
			assert.Nil(t, got[2].Message)
			assert.Equal(t, connect.CodeUnavailable, connect.CodeOf(got[2].Err))
			d, err := ratelimit.Peek(t.Context(), l, "everyone", 1)
			require.NoError(t, err)
			assert.Equal(t, 100-11-31-1, d.Remaining)
		})
	}
	_, err := connectlimit.New(ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil)), everyone), &connectlimit.Options{
		Settle:         connectlimit.RefundServerErrors,
		SettleResponse: func(*connectlimit.Call, connectlimit.Response, int) int { return 0 },
	})
	assert.EqualError(t, err, "connectlimit: Options.Settle and Options.SettleResponse are both given")
}

func TestCallsBeyondTheInflightLimitAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, row := range map[string]struct {
			opts *inflight.Options[string]
		}{"fixed": {nil}, "adaptive": {&inflight.Options[string]{Adaptive: inflight.Learn(nil)}}} {
			l := ratelimit.Must(inflight.New(1, row.opts))
			var learnt []error
			i := ratelimit.Must(connectlimit.NewInflight(l, everyone, &connectlimit.InflightOptions{
				Skip: connectlimit.SkipServices("test.Health"),
				Outcome: func(_ *connectlimit.Call, err error, usual inflight.Outcome) inflight.Outcome {
					learnt = append(learnt, err)
					return usual
				},
			}))
			slow := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
				time.Sleep(time.Second)
				return nil, errors.New("bug")
			})
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, err := slow(t.Context(), connect.NewRequest(wrapperspb.String("")))
				assert.EqualError(t, err, "bug")
			}()
			synctest.Wait()
			_, err := slow(t.Context(), connect.NewRequest(wrapperspb.String("")))
			assert.Equal(t, connect.CodeUnavailable, connect.CodeOf(err), name)
			<-done
			assert.PanicsWithValue(t, "in the handler", func() {
				_, _ = i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { panic("in the handler") })(t.Context(), connect.NewRequest(wrapperspb.String("")))
			})
			assert.Equal(t, httplimit.Stats{Allowed: 2, Denied: 1}, i.Stats())
			i.RefuseHeld() // no call is held
			assert.Zero(t, l.Totals().InFlight)
			require.Len(t, learnt, 2, "an Outcome of one's own is asked whatever the limit: it may count")
			assert.Equal(t, connect.CodeInternal, connect.CodeOf(learnt[1]), "the panic")
		}
	})
}

// Package edge tests each code's outcome.
func TestAnAdaptiveLimitLearnsFromOutcomes(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	unary, stream := connectlimit.NewCall(t.Context(), "/a/b", nil, nil), connectlimit.NewCall(t.Context(), "/a/b", nil, nil)
	unary.StreamType, stream.StreamType = connect.StreamTypeUnary, connect.StreamTypeServer
	assert.Equal(t, inflight.Success, connectlimit.UsualOutcome(unary, nil))
	assert.Equal(t, inflight.Dropped, connectlimit.UsualOutcome(unary, connect.NewError(connect.CodeUnavailable, nil)))
	assert.Equal(t, inflight.Cancelled, connectlimit.UsualOutcome(connectlimit.NewCall(gone, "/a/b", nil, nil), nil))
	assert.Equal(t, inflight.Ignored, connectlimit.UsualOutcome(stream, nil))
}

func TestMistakesOfInflightAreRefused(t *testing.T) {
	whole := ratelimit.Must(inflight.New[*connectlimit.Call](1, nil))
	_, wrong := connectlimit.NewInflight(whole, func(c *connectlimit.Call) (*connectlimit.Call, error) { return c, nil }, nil)
	assert.ErrorContains(t, wrong, "connectlimit: this limiter's key is the call itself")
	l := ratelimit.Must(inflight.New[string](1, nil))
	_, err := connectlimit.NewInflight(nil, everyone, nil)
	assert.ErrorContains(t, err, "connectlimit: NewInflight: l is nil")
	_, err = connectlimit.NewInflight(l, everyone, &connectlimit.InflightOptions{MaxWait: -1})
	assert.ErrorContains(t, err, "connectlimit: InflightOptions.MaxWait is -1ns")
	_, err = connectlimit.NewInflight(l, everyone, &connectlimit.InflightOptions{KeyCode: 99})
	assert.ErrorContains(t, err, "connectlimit: InflightOptions.KeyCode is 99")
}

// A handler may return a context's error unchanged. Connect adds the code after the interceptors have returned.
func TestAContextsErrorHasTheCodeOfItsAnswer(t *testing.T) {
	charge := connectlimit.ChargeOnly(connect.CodeDeadlineExceeded, connect.CodeCanceled)
	for err, cost := range map[error]int{
		fmt.Errorf("backend: %w", context.DeadlineExceeded): 3, os.ErrDeadlineExceeded: 3, context.Canceled: 3, errors.New("bug"): 0,
		connect.NewError(connect.CodeInternal, context.Canceled): 0,
	} {
		assert.Equal(t, cost, charge(nil, err, 3), err)
	}
	l := ratelimit.Must(inflight.New[string](1, &inflight.Options[string]{Adaptive: inflight.Learn(nil)}))
	var learnt []inflight.Outcome
	i := ratelimit.Must(connectlimit.NewInflight(l, everyone, &connectlimit.InflightOptions{
		Outcome: func(_ *connectlimit.Call, _ error, usual inflight.Outcome) inflight.Outcome {
			learnt = append(learnt, usual)
			return usual
		},
	}))
	call := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
		return nil, context.DeadlineExceeded
	})
	_, err := call(t.Context(), connect.NewRequest(wrapperspb.String("")))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, []inflight.Outcome{inflight.Dropped}, learnt)
}
