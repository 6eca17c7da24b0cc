package connectlimit_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/connectlimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/ratelimittest"
)

type text = wrapperspb.StringValue

const (
	echoProcedure  = "/test.Echo/Echo"
	countProcedure = "/test.Echo/Count"
)

// service starts an echo server. A stream echoes the message three times. For
// the text "fail" the server returns unavailable, and for "panic" it panics.
func service(t *testing.T, i ...connect.Interceptor) *httptest.Server {
	mux := http.NewServeMux()
	with := connect.WithInterceptors(i...)
	mux.Handle(echoProcedure, connect.NewUnaryHandler(echoProcedure, func(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
		switch r.Msg.Value {
		case "fail":
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("down"))
		case "panic":
			panic(http.ErrAbortHandler)
		}
		return connect.NewResponse(r.Msg), nil
	}, with))
	mux.Handle(countProcedure, connect.NewServerStreamHandler(countProcedure, func(_ context.Context, r *connect.Request[text], s *connect.ServerStream[text]) error {
		for range 3 {
			if err := s.Send(r.Msg); err != nil {
				return err
			}
		}
		return nil
	}, with))
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

var protocols = map[string][]connect.ClientOption{
	"connect": nil, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
}

type client struct{ echo, count *connect.Client[text, text] }

func newClient(s *httptest.Server, options ...connect.ClientOption) client {
	return client{
		connect.NewClient[text, text](s.Client(), s.URL+echoProcedure, options...),
		connect.NewClient[text, text](s.Client(), s.URL+countProcedure, options...),
	}
}

func (c client) send(ctx context.Context, what string, header ...string) error {
	r := connect.NewRequest(wrapperspb.String(what))
	for i := 0; i < len(header); i += 2 {
		r.Header().Set(header[i], header[i+1])
	}
	_, err := c.echo.CallUnary(ctx, r)
	return err
}

func (c client) stream(ctx context.Context) (messages int, err error) {
	s, err := c.count.CallServerStream(ctx, connect.NewRequest(wrapperspb.String("x")))
	if err != nil {
		return 0, err
	}
	defer s.Close()
	for s.Receive() {
		messages++
	}
	return messages, s.Err()
}

func details(err error) (types []string) {
	var refused *connect.Error
	if errors.As(err, &refused) {
		for _, d := range refused.Details() {
			types = append(types, d.Type())
		}
	}
	return types
}

func meta(err error) http.Header {
	var refused *connect.Error
	if errors.As(err, &refused) {
		return refused.Meta()
	}
	return nil
}

func keyed(t *testing.T, limit ratelimit.Limit, key func(*connectlimit.Call) (string, error), opts *connectlimit.Options) (*connectlimit.Interceptor, *ratelimit.Keyed[string]) {
	l := ratelimit.Must(ratelimit.New[string](limit, &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
	i := ratelimit.Must(connectlimit.New(ratelimit.Map(l, key), opts))
	return i, l
}

func TestADenialInEachProtocol(t *testing.T) {
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			i, _ := keyed(t, ratelimit.FixedWindow(ratelimit.PerMinute(2)).Named("echo"), connectlimit.Header("X-Client"), nil)
			c := newClient(service(t, i), options...)
			require.NoError(t, c.send(t.Context(), "a", "X-Client", "ann"))
			require.NoError(t, c.send(t.Context(), "a", "X-Client", "ann"))
			err := c.send(t.Context(), "a", "X-Client", "ann")
			assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
			assert.ErrorContains(t, err, "rate limit exceeded: echo")
			assert.Equal(t, []string{"google.rpc.RetryInfo", "google.rpc.QuotaFailure"}, details(err))
			assert.Equal(t, "60", meta(err).Get("Retry-After"))
			assert.Equal(t, "60000", meta(err).Get("Grpc-Retry-Pushback-Ms"))
			require.NoError(t, c.send(t.Context(), "a", "X-Client", "bob"), "a budget of its own")

			err = c.send(t.Context(), "a")
			assert.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
			assert.NotContains(t, err.Error(), "X-Client")
			assert.Equal(t, httplimit.Stats{Allowed: 3, Denied: 1, Rejected: 1}, i.Stats())
		})
	}
}

func TestAStreamIsOneCall(t *testing.T) {
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			i, _ := keyed(t, ratelimit.FixedWindow(ratelimit.PerMinute(2)), connectlimit.Procedure, nil)
			c := newClient(service(t, i), options...)
			for range 2 {
				n, err := c.stream(t.Context())
				require.NoError(t, err)
				assert.Equal(t, 3, n)
			}
			n, err := c.stream(t.Context())
			assert.Zero(t, n)
			assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
			assert.Len(t, details(err), 2)
			require.NoError(t, c.send(t.Context(), "a"), "another procedure")
		})
	}
}

func TestSettle(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(100))
	key := func(*connectlimit.Call) (string, error) { return "", nil }
	left := func(l *ratelimit.Keyed[string]) int {
		d, err := l.Peek(context.Background(), "", 1)
		require.NoError(t, err)
		return d.Remaining
	}
	i, l := keyed(t, limit, key, &connectlimit.Options{
		Cost:   func(c *connectlimit.Call) int { return len(c.Request.(*text).Value) },
		Settle: connectlimit.RefundServerErrors,
	})
	c := newClient(service(t, i))
	require.NoError(t, c.send(t.Context(), "12345"))
	assert.Equal(t, 95, left(l))
	require.Error(t, c.send(t.Context(), "fail"))
	assert.Equal(t, 95, left(l), "given back")
	require.Error(t, c.send(t.Context(), "panic"))
	assert.Equal(t, 95, left(l), "a handler that panics has failed")

	i, l = keyed(t, limit, key, &connectlimit.Options{Settle: connectlimit.ChargeOnly(connect.CodeUnavailable)})
	c = newClient(service(t, i))
	require.NoError(t, c.send(t.Context(), "x"))
	assert.Equal(t, 100, left(l))
	require.Error(t, c.send(t.Context(), "fail"))
	assert.Equal(t, 99, left(l))
}

func TestRefusalsAreAnsweredWithoutTheErrorsText(t *testing.T) {
	down := limiterFunc(func() (ratelimit.Decision, error) {
		return ratelimit.Decision{}, errors.Join(ratelimit.ErrUnavailable, errors.New("password=hunter2"))
	})
	for name, c := range map[string]struct {
		limiter ratelimit.Limiter[*connectlimit.Call]
		opts    *connectlimit.Options
		code    connect.Code
		stats   httplimit.Stats
	}{
		"down":          {down, nil, connect.CodeUnavailable, httplimit.Stats{Failed: 1}},
		"down, open":    {down, &connectlimit.Options{FailOpen: true}, 0, httplimit.Stats{FailedOpen: 1}},
		"down, shadow":  {down, &connectlimit.Options{Shadow: true}, 0, httplimit.Stats{Failed: 1}},
		"down, skipped": {down, &connectlimit.Options{Skip: func(*connectlimit.Call) bool { return true }}, 0, httplimit.Stats{Skipped: 1}},
		"down, replaced": {down, &connectlimit.Options{OnRefused: func(connectlimit.Event, *connect.Error) *connect.Error {
			return connect.NewError(connect.CodeAborted, errors.New("go away"))
		}}, connect.CodeAborted, httplimit.Stats{Failed: 1}},
		"not replaced": {down, &connectlimit.Options{OnRefused: func(connectlimit.Event, *connect.Error) *connect.Error { return nil }},
			connect.CodeUnavailable, httplimit.Stats{Failed: 1}},
		"blocked": {ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.Blocked(), nil)), connectlimit.Procedure), nil,
			connect.CodeResourceExhausted, httplimit.Stats{Exceeds: 1}},
		"no key": {ratelimit.Map(ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil)), keyfunc.BearerToken(connectlimit.Header("Authorization"))),
			&connectlimit.Options{KeyCode: connect.CodeUnauthenticated}, connect.CodeUnauthenticated, httplimit.Stats{Rejected: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			i := ratelimit.Must(connectlimit.New(c.limiter, c.opts))
			err := newClient(service(t, i)).send(t.Context(), "x")
			if c.code == 0 {
				require.NoError(t, err)
			} else {
				assert.Equal(t, c.code, connect.CodeOf(err))
				assert.NotContains(t, err.Error(), "hunter2")
				assert.Equal(t, name == "blocked", strings.Contains(err.Error(), "the key is blocked: do not retry: default"))
			}
			assert.Equal(t, c.stats, i.Stats())
		})
	}
}

type limiterFunc func() (ratelimit.Decision, error)

func (f limiterFunc) Allow(*connectlimit.Call, int) bool { d, _ := f(); return d.Allowed }
func (f limiterFunc) Take(context.Context, *connectlimit.Call, int) (ratelimit.Decision, error) {
	return f()
}

// The test runs in a synctest bubble, without a network.
func TestALeakyBucketHoldsCalls(t *testing.T) {
	for name, row := range map[string]struct {
		deadline, leaves time.Duration // of the second call
		code             connect.Code  // or 0 if it is served
		took             time.Duration
		left             int // the remaining budget, a second after the first call
	}{
		"a second":                {deadline: time.Minute, took: time.Second, left: 2},
		"beyond its deadline":     {deadline: 500 * time.Millisecond, code: connect.CodeResourceExhausted, left: 3},
		"until its client leaves": {deadline: time.Minute, leaves: 700 * time.Millisecond, code: connect.CodeCanceled, took: 700 * time.Millisecond, left: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerSecond(1), 3), nil))
				i := ratelimit.Must(connectlimit.New(ratelimit.Must(ratelimit.All(ratelimit.By(l, connectlimit.Procedure))), nil))
				served := 0
				call := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
					served++
					return nil, nil
				})
				take := func(ctx context.Context) error {
					_, err := call(ctx, request{connect.NewRequest(wrapperspb.String("x"))})
					return err
				}
				start := time.Now()
				require.NoError(t, take(t.Context()))
				ctx, cancel := context.WithTimeout(t.Context(), row.deadline)
				defer cancel()
				if row.leaves > 0 {
					time.AfterFunc(row.leaves, cancel)
				}
				err := take(ctx)
				assert.Equal(t, row.took, time.Since(start))
				if row.code == 0 {
					require.NoError(t, err)
					assert.Equal(t, 2, served)
				} else {
					assert.Equal(t, row.code, connect.CodeOf(err))
					assert.Equal(t, 1, served)
				}
				time.Sleep(time.Second - time.Since(start))
				d, err := l.Peek(t.Context(), "/test.Echo/Echo", 1)
				require.NoError(t, err)
				assert.Equal(t, row.left, d.Remaining, "what is not served is given back")
			})
		})
	}
}

// request sets a procedure. Without it, only connect-go's server can.
type request struct{ *connect.Request[text] }

func (request) Spec() connect.Spec { return connect.Spec{Procedure: echoProcedure} }

func TestKeys(t *testing.T) {
	c := connectlimit.NewCall(t.Context(), echoProcedure, http.Header{
		"X-Api-Key": {"secret"}, "Authorization": {"Bearer token"}, "Twice": {"a", "b"}, "Long": {strings.Repeat("x", 2000)},
		"X-Forwarded-For": {"203.0.113.9, 10.0.0.2"},
	}, nil)
	c.Peer.Addr = "10.0.0.1:4711"
	overUnix := connectlimit.NewCall(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.UnixAddr{Name: "/run/api.sock", Net: "unix"}), echoProcedure, nil, nil)
	overUnix.Peer.Addr = "10.0.0.1:4711" // the client's own name for its end
	zero := new(connectlimit.Call)
	require.NoError(t, zero.Context().Err())
	behind := ratelimit.Must(connectlimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}))
	type result struct {
		key any
		err error
	}
	of := func(key any, err error) result { return result{key, err} }
	for name, test := range map[string]struct {
		got  result
		want any
		err  error
	}{
		"an API key":              {got: of(keyfunc.APIKey(connectlimit.Header("x-api-key"))(c)), want: keyfunc.HashOf("secret")},
		"a bearer token":          {got: of(keyfunc.BearerToken(connectlimit.Header("Authorization"))(c)), want: keyfunc.HashOf("token")},
		"a field sent twice":      {got: of(connectlimit.Header("Twice")(c)), err: keyfunc.ErrMalformedKey},
		"a long field":            {got: of(connectlimit.Header("Long")(c)), err: keyfunc.ErrMalformedKey},
		"no field":                {got: of(connectlimit.Header("None")(c)), err: keyfunc.ErrNoKey},
		"otherwise the procedure": {got: of(keyfunc.Otherwise(connectlimit.Header("None"), connectlimit.Procedure)(c)), want: echoProcedure},
		"an optional field":       {got: of(keyfunc.Optional(connectlimit.Header("None"))(c)), err: ratelimit.SkipLayer},
		"a pair": {got: of(keyfunc.Join(connectlimit.Procedure, connectlimit.RemoteIP)(c)),
			want: keyfunc.Pair[string, netip.Addr]{A: echoProcedure, B: netip.MustParseAddr("10.0.0.1")}},
		"a client behind a proxy": {got: of(behind(c)), want: netip.MustParseAddr("203.0.113.9")},
		"no procedure":            {got: of(connectlimit.Procedure(zero)), err: keyfunc.ErrNoKey},
		"no address":              {got: of(connectlimit.RemoteIP(zero)), err: keyfunc.ErrMalformedKey},
		"a Unix socket":           {got: of(connectlimit.RemoteIP(overUnix)), err: keyfunc.ErrMalformedKey},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, test.got.err, test.err)
			if test.err == nil {
				assert.Equal(t, test.want, test.got.key)
			}
		})
	}
}

// A key must not keep the rest of a longer text in memory.
func TestAHeadersKeyIsACopy(t *testing.T) {
	value := strings.Repeat("x", 10)
	key, err := connectlimit.Header("X-Client")(connectlimit.NewCall(t.Context(), echoProcedure, http.Header{"X-Client": {value}}, nil))
	require.NoError(t, err)
	assert.Equal(t, value, key)
	assert.NotSame(t, unsafe.StringData(value), unsafe.StringData(key))
}

func TestMistakesAreNamed(t *testing.T) {
	l := ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil)), connectlimit.Procedure)
	for want, err := range map[string]error{
		"New: limiter is nil": second(connectlimit.New(nil, nil)),
		"budget of its own":   second(connectlimit.New(ratelimit.Must(ratelimit.New[*connectlimit.Call](ratelimit.Unlimited(), nil)), nil)),
		"Options.Jitter":      second(connectlimit.New(l, &connectlimit.Options{Jitter: -1})),
		"Options.KeyCode":     second(connectlimit.New(l, &connectlimit.Options{KeyCode: 17})),
		"Options.Settle": second(connectlimit.New(limiterFunc(func() (ratelimit.Decision, error) { return ratelimit.Decision{}, nil }),
			&connectlimit.Options{Settle: connectlimit.RefundServerErrors})),
		"invalid limit":  second(connectlimit.PerIP(ratelimit.Limit{}, nil)),
		"connectlimit: ": second(connectlimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: -1})),
	} {
		require.ErrorContains(t, err, want)
	}
	assert.Panics(t, func() { new(connectlimit.Interceptor).WrapUnary(nil) })
	assert.Panics(t, func() { ratelimit.Must(connectlimit.New(nil, nil)) })
	assert.Zero(t, new(connectlimit.Interceptor).Stats())
}

func second(_ any, err error) error { return err }

// The test also serves the race detector.
func TestACrowdTakesNoMoreThanTheLimit(t *testing.T) {
	i, _ := keyed(t, ratelimit.FixedWindow(ratelimit.PerHour(50)), connectlimit.Procedure, &connectlimit.Options{Settle: connectlimit.RefundServerErrors})
	c := newClient(service(t, i))
	var mu sync.Mutex
	served := 0
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if c.send(t.Context(), "x") == nil {
				mu.Lock()
				defer mu.Unlock()
				served++
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 50, served)
}

// An interceptor passed to a client by mistake does nothing.
func TestClientsAreLeftAlone(t *testing.T) {
	l := ratelimit.Must(inflight.New[string](1, nil))
	_, err := l.TryAcquire("everyone", 1)
	require.NoError(t, err)
	open, _ := keyed(t, ratelimit.Unlimited(), connectlimit.Procedure, nil)
	for _, i := range []*connectlimit.Interceptor{
		ratelimit.Must(connectlimit.PerIP(ratelimit.Blocked(), nil)), ratelimit.Must(connectlimit.NewInflight(l, everyone, nil)),
	} {
		c := newClient(service(t, open), connect.WithInterceptors(i))
		require.NoError(t, c.send(t.Context(), "x"))
		_, err := c.stream(t.Context())
		require.NoError(t, err)
	}
}

// RFC 9110 requires a challenge in each 401.
func TestA401HasAChallenge(t *testing.T) {
	answers := func(i connect.Interceptor) *http.Response {
		s := service(t, i)
		resp, err := s.Client().Post(s.URL+echoProcedure, "application/json", strings.NewReader(`"x"`))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp
	}
	for name, row := range map[string]struct {
		opts   connectlimit.Options
		status int
		want   []string
	}{
		"by default":        {connectlimit.Options{KeyCode: connect.CodeUnauthenticated}, 401, []string{"Bearer"}},
		"another challenge": {connectlimit.Options{KeyCode: connect.CodeUnauthenticated, Challenge: `Basic realm="api"`}, 401, []string{`Basic realm="api"`}},
		"another code":      {connectlimit.Options{KeyCode: connect.CodePermissionDenied}, 403, nil},
		"the default code":  {connectlimit.Options{}, 400, nil},
		"an answer with another challenge": {connectlimit.Options{KeyCode: connect.CodeUnauthenticated,
			OnRefused: func(_ connectlimit.Event, answer *connect.Error) *connect.Error {
				answer.Meta().Set("WWW-Authenticate", "Digest")
				return answer
			}}, 401, []string{"Digest"}},
	} {
		i, _ := keyed(t, ratelimit.Unlimited(), connectlimit.Header("X-Tenant"), &row.opts)
		resp := answers(i)
		assert.Equal(t, row.status, resp.StatusCode, name)
		assert.Equal(t, row.want, resp.Header.Values("WWW-Authenticate"), name)

		inflightLimit := ratelimit.Must(connectlimit.NewInflight(ratelimit.Must(inflight.New(1, &inflight.Options[string]{})), connectlimit.Header("X-Tenant"),
			&connectlimit.InflightOptions{KeyCode: row.opts.KeyCode, Challenge: row.opts.Challenge}))
		if row.opts.OnRefused == nil {
			resp = answers(inflightLimit)
			assert.Equal(t, row.status, resp.StatusCode, name)
			assert.Equal(t, row.want, resp.Header.Values("WWW-Authenticate"), name)
		}
	}
	blocked, _ := keyed(t, ratelimit.Blocked(), everyone, &connectlimit.Options{KeyCode: connect.CodeUnauthenticated})
	assert.Empty(t, answers(blocked).Header.Values("WWW-Authenticate"), "the call has a valid key")

	_, err := connectlimit.New(ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil)), everyone), &connectlimit.Options{Challenge: "Bearer"})
	require.EqualError(t, err, "connectlimit: Options.Challenge is given, and KeyCode is invalid_argument, want unauthenticated")
	_, err = connectlimit.NewInflight(ratelimit.Must(inflight.New(1, &inflight.Options[string]{})), everyone,
		&connectlimit.InflightOptions{KeyCode: connect.CodeUnauthenticated, Challenge: "Bearer\nX-Evil: 1"})
	require.EqualError(t, err, `connectlimit: InflightOptions.Challenge has '\n' at position 6, which a header field cannot carry`)
}
