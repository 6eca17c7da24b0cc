package grpclimit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// script is a server that records the calls with their times, and returns the prepared answers.
type script struct {
	mu      sync.Mutex
	begin   time.Time
	arrived []arrival
	answer  func(n int) reply // n counts from 1; nil for OK
	takes   time.Duration     // the time of a call that is answered with OK
}

type arrival struct {
	name string // as in the metadata
	at   time.Duration
}

// reply is how a call ends.
type reply struct {
	err      error
	pushback []string
}

func newScript(answer func(n int) reply) *script { return &script{begin: time.Now(), answer: answer} }

// once answers the first call with that, and others with OK.
func once(r reply) func(int) reply {
	return func(n int) reply {
		if n == 1 {
			return r
		}
		return reply{}
	}
}

// next notes a call and returns its answer.
func (s *script) next(ctx context.Context, setTrailer func(metadata.MD)) error {
	name := ""
	if values := metadata.ValueFromIncomingContext(ctx, "name"); len(values) > 0 {
		name = values[0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived = append(s.arrived, arrival{name, time.Since(s.begin)})
	if s.answer == nil {
		s.mu.Unlock()
		time.Sleep(s.takes)
		s.mu.Lock()
		return nil
	}
	r := s.answer(len(s.arrived))
	if len(r.pushback) > 0 {
		setTrailer(metadata.MD{"grpc-retry-pushback-ms": r.pushback})
	}
	return r.err
}

func (s *script) server() *grpc.Server {
	server := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := s.next(ctx, func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) }); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := s.next(ss.Context(), ss.SetTrailer); err != nil {
				return err
			}
			return handler(srv, ss)
		}))
	testgrpc.RegisterTestServiceServer(server, new(service))
	return server
}

// times returns when the calls arrived.
func (s *script) times() (at []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.arrived {
		at = append(at, a.at)
	}
	return at
}

// refusing is a status that may have a RetryInfo for each delay.
func refusing(code codes.Code, delays ...*durationpb.Duration) error {
	st := status.New(code, "refused")
	for _, d := range delays {
		st, _ = st.WithDetails(&errdetails.RetryInfo{RetryDelay: d})
	}
	return st.Err()
}

// denial is RESOURCE_EXHAUSTED with a RetryInfo.
func denial(wait time.Duration) reply {
	return reply{err: refusing(codes.ResourceExhausted, durationpb.New(wait))}
}

// byTarget is a limiter of each target.
func byTarget(t testing.TB, limit ratelimit.Limit) ratelimit.Reserver[*grpclimit.Call] {
	t.Helper()
	l, err := ratelimit.New[string](limit, nil)
	require.NoError(t, err)
	return ratelimit.Map(l, grpclimit.ClientTarget)
}

func unlimited(t testing.TB) ratelimit.Reserver[*grpclimit.Call] {
	t.Helper()
	return byTarget(t, ratelimit.Unlimited())
}

// paced returns a Client and a function that connects with it.
func paced(t testing.TB, l ratelimit.Reserver[*grpclimit.Call], opts grpclimit.ClientOptions) (*grpclimit.Client, []grpc.DialOption) {
	t.Helper()
	if opts.MaxWait == 0 {
		opts.MaxWait = -1 // these tests wait for as long as the server demands
	}
	c, err := grpclimit.NewClient(l, &opts)
	require.NoError(t, err)
	return c, []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(c.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(c.StreamClientInterceptor()),
	}
}

// pacedInBubble connects a Client with a scripted server in memory.
func pacedInBubble(t testing.TB, s *script, l ratelimit.Reserver[*grpclimit.Call], opts grpclimit.ClientOptions) (testgrpc.TestServiceClient, *grpclimit.Client) {
	t.Helper()
	c, dialling := paced(t, l, opts)
	return inBubble(t, s.server(), dialling...), c
}

// named adds the call's name for the server.
func named(ctx context.Context, name string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "name", name)
}

// ok makes a call that has to go well.
func ok(ctx context.Context, t testing.TB, client testgrpc.TestServiceClient, way string) {
	t.Helper()
	assert.NoError(t, ways[way](ctx, client))
}
