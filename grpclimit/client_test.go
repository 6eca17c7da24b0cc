package grpclimit_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
	"github.com/weir-go/ratelimit/keyfunc"
)

// A client queues its calls as its options, deadlines and the server's answers require. Package pace tests the queue itself.
func TestAClientQueuesItsCalls(t *testing.T) {
	const year = 365 * 24 * time.Hour
	perMinute6, unlimited := ratelimit.TokenBucket(ratelimit.PerMinute(6), 1), ratelimit.Unlimited()
	for name, row := range map[string]struct {
		limit ratelimit.Limit
		reply reply // the answer to the first call
		opts  grpclimit.ClientOptions
		time  time.Duration // the time until the second call's deadline; 0 means a year
		want  time.Duration // when the second call arrives
		err   error         // the error with which it fails at once
		code  codes.Code
	}{
		"its own limit":       {perMinute6, reply{}, grpclimit.ClientOptions{}, 0, 10 * time.Second, nil, codes.OK},
		"Cost":                {perMinute6, reply{}, grpclimit.ClientOptions{Cost: func(*grpclimit.Call) int { return 0 }}, 0, 0, nil, codes.OK},
		"RetryInfo":           {unlimited, denial(10 * time.Second), grpclimit.ClientOptions{}, 0, 10 * time.Second, nil, codes.OK},
		"time enough":         {perMinute6, reply{}, grpclimit.ClientOptions{}, 11 * time.Second, 10 * time.Second, nil, codes.OK},
		"too little time":     {perMinute6, reply{}, grpclimit.ClientOptions{}, 9 * time.Second, 0, context.DeadlineExceeded, codes.DeadlineExceeded},
		"no time":             {unlimited, reply{}, grpclimit.ClientOptions{}, -1, 0, context.DeadlineExceeded, codes.DeadlineExceeded},
		"a minute by default": {unlimited, denial(time.Minute), grpclimit.ClientOptions{}, 0, time.Minute, nil, codes.OK},
		"more than a minute":  {unlimited, denial(time.Minute + 1), grpclimit.ClientOptions{}, 0, 0, ratelimit.ErrLimited, codes.ResourceExhausted},
		"MaxWait":             {perMinute6, reply{}, grpclimit.ClientOptions{MaxWait: 9 * time.Second}, 0, 0, ratelimit.ErrLimited, codes.ResourceExhausted},
		"no MaxWait":          {unlimited, denial(77 * time.Hour), grpclimit.ClientOptions{MaxWait: -1}, 0, 77 * time.Hour, nil, codes.OK},
		"MaxServerWait":       {unlimited, denial(100 * year), grpclimit.ClientOptions{MaxServerWait: time.Minute}, 0, time.Minute, nil, codes.OK},
		"MaxServerWait, the longest RetryInfo": {unlimited, reply{err: refusing(codes.ResourceExhausted, &durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MaxInt32})},
			grpclimit.ClientOptions{MaxServerWait: time.Minute}, 0, time.Minute, nil, codes.OK},
		"MaxServerWait, the longest pushback": {unlimited, reply{refusing(codes.ResourceExhausted), []string{strconv.FormatInt(math.MaxInt64, 10)}},
			grpclimit.ClientOptions{MaxServerWait: time.Minute}, 0, time.Minute, nil, codes.OK},
	} {
		for way, do := range ways {
			bubble(t, name+"/"+way, func(t *testing.T) {
				s := newScript(once(row.reply))
				c := ratelimit.Must(grpclimit.NewClient(byTarget(t, row.limit), &row.opts))
				client := inBubble(t, s.server(), grpc.WithChainUnaryInterceptor(c.UnaryClientInterceptor()), grpc.WithChainStreamInterceptor(c.StreamClientInterceptor()))
				_ = do(t.Context(), client)
				ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(row.time, year))
				defer cancel()
				if row.err == nil {
					ok(ctx, t, client, way)
					assert.Equal(t, []time.Duration{0, row.want}, s.times())
					return
				}
				_, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest))
				if way == "stream" {
					_, err = client.FullDuplexCall(ctx)
				}
				assert.ErrorIs(t, err, row.err)
				assert.Equal(t, row.code, status.Code(err))
				assert.Contains(t, status.Convert(err).Message(), row.err.Error())
				assert.Zero(t, time.Since(s.begin))
				assert.NotZero(t, c.Stats().Failed)
			})
		}
	}
}

func TestResetOfAClientForgetsTheServersAdvice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(once(denial(24 * time.Hour)))
		client, c := pacedInBubble(t, s, unlimited(t), grpclimit.ClientOptions{})
		assert.Error(t, ways["unary"](t.Context(), client))
		c.Reset("passthrough:///bubble")
		ok(t.Context(), t, client, "unary")
		assert.Equal(t, []time.Duration{0, 0}, s.times())
	})
	new(grpclimit.Client).Reset("key") // the zero Client ignores Reset
}

func TestKeyFunctionsOfClientCalls(t *testing.T) {
	var seen *grpclimit.Call
	_, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{Cost: func(c *grpclimit.Call) int { seen = c; return 1 }})
	client := testgrpc.NewTestServiceClient(dial(t, start(t, newScript(nil).server()), dialling...))
	served := metadata.NewIncomingContext(peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}}), metadata.Pairs("name", "of the call that the program serves"))
	ok(metadata.AppendToOutgoingContext(served, "name", "x"), t, client, "unary")
	assert.Regexp(t, `^dns:///127\.0\.0\.1:\d+$`, seen.Target)
	assert.Equal(t, "/grpc.testing.TestService/UnaryCall", seen.FullMethod)
	md, _ := metadata.FromOutgoingContext(seen.Context())
	assert.Equal(t, []string{"x"}, md["name"])
	name, err := grpclimit.Metadata("Name")(seen)
	assert.NoError(t, err)
	assert.Equal(t, "x", name)
	_, err = grpclimit.RemoteIP(seen)
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, "the peer is that of the call that the program serves")

	ok(t.Context(), t, client, "stream")
	assert.True(t, seen.ClientStream && seen.ServerStream)

	zero := new(grpclimit.Call)
	assert.NotNil(t, zero.Context())
	assert.Empty(t, zero.Target)
}

// garbage is a denial whose details are malformed or have unknown types.
var garbage = status.FromProto(&spb.Status{Code: int32(codes.ResourceExhausted), Message: "no", Details: []*anypb.Any{
	{TypeUrl: "type.googleapis.com/google.rpc.RetryInfo", Value: []byte{0xff, 0xff, 0xff}},
	{TypeUrl: "type.googleapis.com/no.such.Type", Value: []byte{1, 2, 3}},
	{}, nil,
}}).Err()

// advices are replies, and how long each delays the key's next call.
var advices = map[string]struct {
	reply reply
	want  time.Duration
	retry bool // whether a unary call is sent again
}{
	"RetryInfo":                        {denial(7 * time.Second), 7 * time.Second, true},
	"RetryInfo with a fraction":        {denial(1234567 * time.Nanosecond), 1234567, true},
	"RetryInfo of zero":                {denial(0), 1, true},
	"RetryInfo below zero":             {denial(-time.Second), 0, false},
	"RetryInfo without a delay":        {reply{err: refusing(codes.ResourceExhausted, nil)}, 0, false},
	"two RetryInfos":                   {reply{err: refusing(codes.ResourceExhausted, durationpb.New(2*time.Second), durationpb.New(time.Second))}, 2 * time.Second, true},
	"UNAVAILABLE with RetryInfo":       {reply{err: refusing(codes.Unavailable, durationpb.New(time.Second))}, time.Second, false},
	"pushback":                         {reply{refusing(codes.ResourceExhausted), []string{"7000"}}, 7 * time.Second, true},
	"pushback of zero":                 {reply{refusing(codes.ResourceExhausted), []string{"0"}}, 1, true},
	"pushback below zero":              {reply{refusing(codes.ResourceExhausted), []string{"-1"}}, 0, false},
	"pushback that is malformed":       {reply{refusing(codes.ResourceExhausted), []string{"soon"}}, 0, false},
	"pushback that is no int64":        {reply{refusing(codes.ResourceExhausted), []string{"99999999999999999999"}}, 0, false},
	"two pushbacks":                    {reply{refusing(codes.ResourceExhausted), []string{"1000", "2000"}}, 0, false},
	"UNAVAILABLE with pushback":        {reply{refusing(codes.Unavailable), []string{"1000"}}, time.Second, false},
	"pushback is later":                {reply{denial(time.Second).err, []string{"3000"}}, 3 * time.Second, true},
	"RetryInfo is later":               {reply{denial(3 * time.Second).err, []string{"1000"}}, 3 * time.Second, true},
	"RetryInfo, and not to be retried": {reply{denial(3 * time.Second).err, []string{"-1"}}, 3 * time.Second, false},
	"RESOURCE_EXHAUSTED without time":  {reply{err: refusing(codes.ResourceExhausted)}, 0, false},
	"UNAVAILABLE without time":         {reply{err: refusing(codes.Unavailable)}, 0, false},
	"ABORTED with RetryInfo":           {reply{err: refusing(codes.Aborted, durationpb.New(time.Second))}, 0, false},
	"NOT_FOUND with pushback":          {reply{refusing(codes.NotFound), []string{"1000"}}, 0, false},
	"OK with pushback":                 {reply{nil, []string{"1000"}}, 0, false},
	"no status":                        {reply{err: errors.New("no status at all")}, 0, false},
	"garbage in details, and pushback": {reply{garbage, []string{"1500"}}, 1500 * time.Millisecond, true},
}

func TestClientWaitsForTheServersRetryDelay(t *testing.T) {
	for name, row := range advices {
		for way, do := range ways {
			for _, retries := range []int{0, 3} {
				bubble(t, fmt.Sprint(name, " ", way, " ", retries), func(t *testing.T) {
					s := newScript(once(row.reply))
					client, c := pacedInBubble(t, s, unlimited(t), grpclimit.ClientOptions{MaxRetries: retries})
					retried := row.retry && retries > 0 && way == "unary" // a stream is not opened again
					want := status.Code(row.reply.err)
					if retried {
						want = codes.OK
					}
					assert.Equal(t, want, status.Code(do(t.Context(), client)))
					if !retried {
						ok(t.Context(), t, client, way)
					}
					assert.Equal(t, []time.Duration{0, row.want}, s.times())
					assert.Equal(t, row.want > 0, c.Stats().Refused == 1)
					assert.Equal(t, retried, c.Stats().Retried == 1)
				})
			}
		}
	}
}

// The caller's options get the last attempt's trailers.
func TestACallersTrailersAreTheLastAttempts(t *testing.T) {
	for _, retries := range []int{0, 3} {
		bubble(t, fmt.Sprint(retries), func(t *testing.T) {
			first := reply{refusing(codes.ResourceExhausted), []string{"7000"}}
			client, _ := pacedInBubble(t, newScript(once(first)), unlimited(t), grpclimit.ClientOptions{MaxRetries: retries})
			assert.Equal(t, retries > 0, call(t.Context(), client).pushback == nil)
		})
	}
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(once(denial(10 * time.Second)))
		client, _ := pacedInBubble(t, s, unlimited(t), grpclimit.ClientOptions{Key: func(c *grpclimit.Call) string { return c.FullMethod }})
		_ = ways["unary"](t.Context(), client)
		ok(t.Context(), t, client, "stream")
		assert.Zero(t, time.Since(s.begin))
		ok(t.Context(), t, client, "unary")
		assert.Equal(t, []time.Duration{0, 0, 10 * time.Second}, s.times())
	})
}

// deciding is a limiter that returns only an error.
type deciding struct{ err error }

func (d deciding) Allow(*grpclimit.Call, int) bool { return false }
func (d deciding) Take(context.Context, *grpclimit.Call, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, d.err
}
func (d deciding) Reserve(context.Context, *grpclimit.Call, int, time.Duration) (*ratelimit.Reservation, error) {
	return nil, d.err
}

// odd is an error whose status is OK.
type odd struct{ status *status.Status }

func (odd) Error() string                { return "odd" }
func (o odd) GRPCStatus() *status.Status { return o.status }

// A limiter may itself call a gRPC server. The caller then gets the server's status and its details.
func TestErrorsOfTheLimiterHaveACode(t *testing.T) {
	denied, no := denial(time.Second).err, status.Error(codes.PermissionDenied, "no")
	for name, row := range map[string]struct {
		err     error
		want    codes.Code
		message string // empty if it is the error's own text
		retry   bool
	}{
		"unknown":                      {errors.New("broken"), codes.Unavailable, "", false},
		"store down":                   {fmt.Errorf("%w: redis", ratelimit.ErrUnavailable), codes.Unavailable, "", false},
		"store too slow":               {errors.Join(ratelimit.ErrUnavailable, context.DeadlineExceeded), codes.Unavailable, "", false},
		"key table full":               {ratelimit.ErrTableFull, codes.Unavailable, "", false},
		"cost above the limit":         {ratelimit.ErrExceedsLimit, codes.ResourceExhausted, "", false},
		"negative cost":                {ratelimit.ErrNegativeCost, codes.Internal, "", false},
		"no key":                       {fmt.Errorf("%w: tenant", keyfunc.ErrNoKey), codes.InvalidArgument, "", false},
		"a status of its own":          {no, codes.PermissionDenied, "no", false},
		"a status of its own, wrapped": {fmt.Errorf("key: %w", no), codes.PermissionDenied, "key: no", false},
		"a denial":                     {denied, codes.ResourceExhausted, "refused", true},
		"a denial, wrapped":            {fmt.Errorf("quota: %w", denied), codes.ResourceExhausted, "quota: refused", true},
		"status of OK":                 {odd{status.New(codes.OK, "")}, codes.Unavailable, "", false},
		"nil status":                   {odd{nil}, codes.Unavailable, "", false},
		"wrapped nil":                  {fmt.Errorf("quota: %w", odd{nil}), codes.Unavailable, "", false},
		"no answer at all":             {nil, codes.ResourceExhausted, "", false},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newScript(nil)
			client, c := pacedInBubble(t, s, deciding{row.err}, grpclimit.ClientOptions{MaxRetries: 3})
			for way := range ways {
				assert.Equal(t, row.want, status.Code(ways[way](t.Context(), client)))
			}
			_, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{})
			is := row.err
			if is == nil {
				is = ratelimit.ErrLimited
			}
			require.ErrorIs(t, err, is)
			a := answer{}.read(err)
			if row.message != "" || errors.As(row.err, new(odd)) {
				assert.Equal(t, cmp.Or(row.message, is.Error()), a.message)
				assert.EqualError(t, err, fmt.Sprintf("rpc error: code = %v desc = %s", row.want, a.message))
			}
			assert.Equal(t, row.want, a.code)
			assert.Equal(t, row.retry, a.retry != nil)
			assert.Empty(t, s.times())
			assert.Equal(t, httplimit.TransportStats{Failed: 3}, c.Stats())
			assert.Zero(t, c.Keys())
		})
	}
}

// After a refusal, streams are opened one at a time: the next one waits until a stream has
// received headers or a message, or has ended. A denial has neither headers nor a message.
func TestAfterARefusalStreamsAreOpenedOneAtATime(t *testing.T) {
	for name, serve := range map[string]func(s testgrpc.TestService_FullDuplexCallClient) error{
		"a message": func(s testgrpc.TestService_FullDuplexCallClient) error {
			return echoOnce(s, &testgrpc.StreamingOutputCallRequest{})
		},
		"headers": func(s testgrpc.TestService_FullDuplexCallClient) error {
			_ = s.Send(&testgrpc.StreamingOutputCallRequest{})
			_, err := s.Header()
			return err
		},
		"its end": func(s testgrpc.TestService_FullDuplexCallClient) error {
			err := s.CloseSend()
			_, _ = s.Recv() // io.EOF
			return err
		},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newScript(once(denial(time.Second)))
			client, c := pacedInBubble(t, s, unlimited(t), grpclimit.ClientOptions{})
			_ = ways["stream"](t.Context(), client)
			opened := make(chan testgrpc.TestService_FullDuplexCallClient, 3)
			for range 3 {
				go func() {
					stream, err := client.FullDuplexCall(t.Context())
					assert.NoError(t, err)
					opened <- stream
				}()
			}
			time.Sleep(time.Second)
			synctest.Wait()
			assert.Len(t, opened, 1, "the others wait")
			require.NoError(t, serve(<-opened))
			synctest.Wait()
			assert.Len(t, opened, 2, "the first is served")
			assert.Equal(t, []time.Duration{0, time.Second, time.Second, time.Second}, s.times())
			assert.Equal(t, uint64(1), c.Stats().Refused)
		})
	}
}

// However a stream ends, its key is forgotten, its permit is given back, and no goroutine remains.
func TestStreamLeavesNothingBehindHoweverItEnds(t *testing.T) {
	type stream = testgrpc.TestService_FullDuplexCallClient
	for name, end := range map[string]func(t *testing.T, s stream, cancel, disconnect func()){
		"the server ends it": func(t *testing.T, s stream, _, _ func()) {
			require.NoError(t, s.CloseSend())
			_, err := s.Recv()
			assert.ErrorIs(t, err, io.EOF)
		},
		"cancelled and never received":      func(_ *testing.T, _ stream, cancel, _ func()) { cancel() },
		"connection closed, never received": func(_ *testing.T, _ stream, _, disconnect func()) { disconnect() },
		"cancelled while receiving": func(t *testing.T, s stream, cancel, _ func()) {
			done := make(chan error)
			go func() { _, err := s.Recv(); done <- err }()
			synctest.Wait()
			cancel()
			assert.Equal(t, codes.Canceled, status.Code(<-done))
		},
	} {
		for _, messages := range []int{0, 1} {
			bubble(t, name, func(t *testing.T) {
				permits := ratelimit.Must(inflight.New[string](1, nil))
				l, opts := unlimited(t), grpclimit.ClientOptions{Inflight: permits, MaxInFlight: 1}
				if messages > 0 {
					l, opts.MaxInFlight = nil, 0 // the Client has permits only
				}
				c, dialling := paced(t, l, opts)
				conn := connInBubble(t, newScript(nil).server(), dialling...)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s, err := testgrpc.NewTestServiceClient(conn).FullDuplexCall(ctx)
				require.NoError(t, err)
				assert.True(t, l == nil || c.Keys() == 1)
				for range messages {
					require.NoError(t, echoOnce(s, new(testgrpc.StreamingOutputCallRequest)))
				}
				assert.Equal(t, 1, permits.Totals().InFlight)
				assert.EqualValues(t, 1, c.Stats().InFlight)
				end(t, s, cancel, func() { _ = conn.Close() })
				synctest.Wait()
				assert.True(t, l == nil || c.Keys() == 0)
				assert.Zero(t, permits.Totals().InFlight)
				assert.Zero(t, c.Stats().InFlight)
			})
		}
	}
}

// canned is a stream that ignores call options.
type canned struct {
	grpc.ClientStream
	errs    []error
	trailer metadata.MD
}

func (c *canned) RecvMsg(any) (err error) {
	err, c.errs = c.errs[0], c.errs[1:]
	return err
}
func (c *canned) Trailer() metadata.MD { return c.trailer }

func TestStreamThatKnowsNoCallOptionsIsObeyedToo(t *testing.T) {
	for name, row := range map[string]struct {
		errs    []error // RecvMsg's results; if many is false and the only result is an error, the stream is not opened
		trailer metadata.MD
		many    bool
		want    time.Duration
	}{
		"ends well":            {[]error{nil, nil, io.EOF}, nil, true, 0},
		"denied as it opens":   {[]error{denial(time.Second).err}, nil, false, time.Second},
		"one message, no more": {[]error{nil}, nil, false, 0},
		"denied":               {[]error{denial(time.Second).err}, nil, true, time.Second},
		"denied mid-way":       {[]error{nil, refusing(codes.ResourceExhausted)}, metadata.Pairs("grpc-retry-pushback-ms", "3000"), true, 3 * time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			c := ratelimit.Must(grpclimit.NewClient(unlimited(t), nil))
			call := func(c *grpclimit.Client, errs ...error) {
				s, err := c.StreamClientInterceptor()(t.Context(), &grpc.StreamDesc{ServerStreams: row.many}, nil, "/a/b",
					func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
						if !row.many && errs[0] != io.EOF {
							return &canned{errs: errs}, errs[0]
						}
						return &canned{errs: errs, trailer: row.trailer}, nil
					})
				for range errs {
					if err == nil {
						_ = s.RecvMsg(nil)
					}
				}
			}
			begin := time.Now()
			call(c, row.errs...)
			assert.Equal(t, row.want > 0, c.Keys() == 1)
			call(c, io.EOF)
			assert.Equal(t, row.want, time.Since(begin))

			end := errors.New("none") // reported to Outcome
			permits := ratelimit.Must(inflight.New[string](1, nil))
			call(ratelimit.Must(grpclimit.NewClient(nil, &grpclimit.ClientOptions{Inflight: permits, Outcome: func(_ *grpclimit.Call, err error, u inflight.Outcome) inflight.Outcome {
				end = err
				return u
			}})), row.errs...)
			assert.Zero(t, permits.Totals().InFlight)
			assert.Equal(t, row.want > 0, end != nil)
		})
	}
}

// A retry policy works beneath the interceptor.
func TestClientWithARetryPolicyBeneath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(once(reply{denial(2 * time.Second).err, []string{"2000"}}))
		c, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{})
		client := inBubble(t, s.server(), append(dialling, grpc.WithDefaultServiceConfig(retryPolicy))...)
		ok(t.Context(), t, client, "unary")
		assert.Equal(t, []time.Duration{0, 2 * time.Second}, s.times())
		assert.Equal(t, httplimit.TransportStats{Sent: 1}, c.Stats())
	})
}

func TestCallersOptionsAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := pacedInBubble(t, newScript(once(reply{nil, []string{"5"}})), unlimited(t), grpclimit.ClientOptions{})
		var trailer metadata.MD
		room := make([]grpc.CallOption, 1, 8)
		room[0] = grpc.Trailer(&trailer)
		_, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}, room...)
		require.NoError(t, err)
		assert.Equal(t, []string{"5"}, trailer["grpc-retry-pushback-ms"])
		assert.Equal(t, make([]grpc.CallOption, 7), room[1:8:8])
	})
}

func TestNewClientRefusesOptionsThatCannotWork(t *testing.T) {
	type options = grpclimit.ClientOptions
	var none *ratelimit.Layered[*grpclimit.Call]
	good, permits := unlimited(t), ratelimit.Must(inflight.New[string](1, nil))
	itself := ratelimit.Must(ratelimit.New[*grpclimit.Call](ratelimit.Unlimited(), nil))
	for _, row := range []struct {
		l    ratelimit.Reserver[*grpclimit.Call]
		opts options
		want string
	}{
		{nil, options{}, "NewClient: limiter is nil"},
		{none, options{}, "limiter is nil"},
		{itself, options{}, "the call itself"},
		{good, options{MaxRetries: -1}, "ClientOptions.MaxRetries is -1"},
		{good, options{MaxKeys: -1}, "ClientOptions.MaxKeys is -1"},
		{good, options{MaxServerWait: -1}, "ClientOptions.MaxServerWait is -1ns, want 0 for the default, or more"},
		{good, options{MaxInFlight: -1}, "ClientOptions.MaxInFlight is -1, want 0 for any number, or more"},
		{good, options{Outcome: func(*grpclimit.Call, error, inflight.Outcome) inflight.Outcome { return inflight.Ignored }},
			"ClientOptions.Outcome is for an adaptive limit, and Inflight is not set"},
		{nil, options{Inflight: permits, MaxRetries: 1}, "without a limiter only Key, MaxWait, Inflight and Outcome"},
		{nil, options{Inflight: permits, MaxInFlight: 1}, "without a limiter only Key, MaxWait, Inflight and Outcome"},
		{nil, options{Inflight: permits, Cost: func(*grpclimit.Call) int { return 1 }}, "without a limiter only Key, MaxWait, Inflight and Outcome"},
	} {
		c, err := grpclimit.NewClient(row.l, &row.opts)
		assert.ErrorContains(t, err, "grpclimit: ")
		assert.ErrorContains(t, err, row.want)
		assert.Nil(t, c)
	}
}

func TestZeroClientPanicsWithAClearText(t *testing.T) {
	const want = "grpclimit: this Client is nil or zero: make one with NewClient"
	for _, c := range []*grpclimit.Client{nil, {}} {
		assert.PanicsWithError(t, want, func() { c.UnaryClientInterceptor() })
		assert.PanicsWithError(t, want, func() { c.StreamClientInterceptor() })
		assert.Zero(t, c.Stats())
	}
}

// A client's calls follow each change of its limiter, except calls at most 100 ms ahead of their turn.
func TestCallsOfAClientFollowEachChange(t *testing.T) {
	linetest.Way{Booked: 100 * time.Millisecond, New: func(t *testing.T, limit ratelimit.Limit) (linetest.Budget, func(context.Context, int) error) {
		l := ratelimit.Must(ratelimit.New[string](limit, nil))
		client, _ := pacedInBubble(t, newScript(nil), ratelimit.Map(l, func(*grpclimit.Call) (string, error) { return "k", nil }), grpclimit.ClientOptions{
			MaxWait: -1,
			Cost:    func(c *grpclimit.Call) int { return int(c.Request.(*testgrpc.SimpleRequest).ResponseSize) },
		})
		return l, func(ctx context.Context, cost int) error {
			_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: int32(cost)}) //nolint:gosec // a test's cost is small
			return err
		}
	}}.Test(t)
}

// The caller's options may have room for more. Other calls may share them.
func TestAClientLeavesTheCallersOptionsAlone(t *testing.T) {
	c := ratelimit.Must(grpclimit.NewClient(ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil)), everyone), nil))
	opts := make([]grpc.CallOption, 1, 9)
	opts[0] = grpc.WaitForReady(true)
	given := 0
	require.NoError(t, c.UnaryClientInterceptor()(t.Context(), "/a/B", nil, nil, nil,
		func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, all ...grpc.CallOption) error {
			given = len(all)
			return nil
		}, opts...))
	assert.Greater(t, given, 1)
	assert.Nil(t, opts[:2][1])
}
