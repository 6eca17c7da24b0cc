package connectlimit_test

import (
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/connectlimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// limited returns an interceptor with three calls a minute for each procedure.
func limited(t *testing.T, opts connectlimit.Options) *connectlimit.Interceptor {
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("calls"), &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
	i := ratelimit.Must(connectlimit.New(ratelimit.Map(l, connectlimit.Procedure), &opts))
	return i
}

func TestLimitFieldsContainTheRemainingBudget(t *testing.T) {
	for protocol, options := range protocols {
		t.Run(protocol, func(t *testing.T) {
			c := newClient(service(t, limited(t, connectlimit.Options{LimitFields: true, QuotaUnit: func(ratelimit.Limit) string { return "calls" }})), options...)
			announced := func(h http.Header) []string { return append(h.Values("RateLimit-Policy"), h.Values("RateLimit")...) }
			resp, err := c.echo.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("x")))
			require.NoError(t, err)
			assert.Equal(t, []string{`"calls";q=3;w=60;qu="calls"`, `"calls";r=2;t=60`}, announced(resp.Header()))
			require.Error(t, c.send(t.Context(), "fail"))
			require.NoError(t, c.send(t.Context(), "x"))
			err = c.send(t.Context(), "x")
			assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
			assert.Equal(t, []string{`"calls";q=3;w=60;qu="calls"`, `"calls";r=0;t=60`}, announced(meta(err)))

			s, err := c.count.CallServerStream(t.Context(), connect.NewRequest(wrapperspb.String("x")))
			require.NoError(t, err)
			for s.Receive() {
			}
			require.NoError(t, s.Err())
			assert.Empty(t, announced(s.ResponseHeader()), "its first message may come an hour after the decision")
			require.NoError(t, s.Close())
		})
	}
}

func TestLimitFieldsAreLeftOut(t *testing.T) {
	for name, row := range map[string]struct {
		opts connectlimit.Options
		want [][]string // the values of RateLimit-Policy and RateLimit
	}{
		"if they are not asked for": {connectlimit.Options{}, [][]string{nil, nil}},
		"in shadow mode":            {connectlimit.Options{LimitFields: true, Shadow: true}, [][]string{nil, nil}},
		"for exempt calls":          {connectlimit.Options{LimitFields: true, Skip: connectlimit.SkipServices("test.Echo")}, [][]string{nil, nil}},
		"what is left, if a cost can never pass": {connectlimit.Options{LimitFields: true, Cost: func(*connectlimit.Call) int { return 4 }},
			[][]string{{`"calls";q=3;w=60`}, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(service(t, limited(t, row.opts)))
			resp, err := c.echo.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("x")))
			h := meta(err)
			if err == nil {
				h = resp.Header()
			}
			assert.Equal(t, row.want, [][]string{h.Values("RateLimit-Policy"), h.Values("RateLimit")})
		})
	}
	l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerMinute(3)), nil))
	twice := ratelimit.Must(ratelimit.All(ratelimit.By(l, connectlimit.Procedure), ratelimit.By(ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(3)), nil)), connectlimit.Procedure)))
	_, err := connectlimit.New(twice, &connectlimit.Options{LimitFields: true})
	assert.ErrorContains(t, err, "the same policy name")
}

// A name stands for one policy in a response, and for the same policy in all responses, whichever interceptor answers.
func TestNestedInterceptorsAnnounceEachNameOnce(t *testing.T) {
	for protocol, options := range protocols {
		t.Run(protocol, func(t *testing.T) {
			per := func(n int) *connectlimit.Interceptor {
				l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(n)), &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
				i := ratelimit.Must(connectlimit.New(ratelimit.Map(l, connectlimit.Procedure), &connectlimit.Options{LimitFields: true}))
				return i
			}
			c := newClient(service(t, per(9), per(3), per(4)), options...)
			announced := func(h http.Header) []string { return append(h.Values("RateLimit-Policy"), h.Values("RateLimit")...) }
			resp, err := c.echo.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("x")))
			require.NoError(t, err)
			assert.Equal(t, []string{`"default";q=9;w=60`, `"default-2";q=3;w=60`, `"default-3";q=4;w=60`,
				`"default";r=8;t=60`, `"default-2";r=2;t=60`, `"default-3";r=3;t=60`}, announced(resp.Header()))
			require.NoError(t, c.send(t.Context(), "x"))
			require.NoError(t, c.send(t.Context(), "x"))
			err = c.send(t.Context(), "x")
			assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
			assert.Equal(t, []string{`"default-2";q=3;w=60`, `"default-2";r=0;t=60`}, announced(meta(err)))
		})
	}
}
