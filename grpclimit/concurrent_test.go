package grpclimit_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// contextStream is a stream that has nothing but a context.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s contextStream) Context() context.Context { return s.ctx }
func (s contextStream) SetTrailer(metadata.MD)   {}

// A call or a stream holds the unit of a limit of calls at the same time until its handler ends, however long that takes.
func TestACallHoldsItsUnitUntilItsHandlerEnds(t *testing.T) {
	for _, way := range []string{"unary", "stream"} {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(1, time.Minute), nil))
				i := ratelimit.Must(grpclimit.New(ratelimit.Must(ratelimit.All(ratelimit.By(calls, func(*grpclimit.Call) (string, error) { return "all", nil }))), nil))
				end, ended := make(chan bool), make(chan error, 1)
				call := func() error {
					if way == "unary" {
						_, err := i.UnaryServerInterceptor()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a/b"},
							func(context.Context, any) (any, error) { <-end; return nil, nil })
						return err
					}
					return i.StreamServerInterceptor()(nil, contextStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/a/b"},
						func(any, grpc.ServerStream) error { <-end; return nil })
				}
				for range 2 {
					go func() { ended <- call() }()
					time.Sleep(time.Hour) // sixty times the hold
					require.Equal(t, codes.ResourceExhausted, status.Code(call()))
					end <- true
					require.NoError(t, <-ended)
				}
			})
		})
	}
}

// The context of a handler ends when its units are no longer held.
func TestTheContextOfACallEndsWhenUnitsHaveLapsed(t *testing.T) {
	for _, way := range []string{"unary", "stream", "charged stream"} {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(1, time.Minute), nil))
				all := ratelimit.Must(ratelimit.All(ratelimit.By(calls, func(*grpclimit.Call) (string, error) { return "all", nil })))
				o := &grpclimit.Options{LimitTrailers: true, Logger: slog.New(slog.DiscardHandler)}
				if way == "charged stream" {
					o.Settle = grpclimit.ChargeOnly(codes.OK)
				}
				i := ratelimit.Must(grpclimit.New(all, o))
				serve := func(ctx context.Context) error {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				ended := make(chan error, 1)
				go func() {
					if way == "unary" {
						_, err := i.UnaryServerInterceptor()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a/b"},
							func(ctx context.Context, _ any) (any, error) { return nil, serve(ctx) })
						ended <- err
						return
					}
					ended <- i.StreamServerInterceptor()(nil, contextStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/a/b"},
						func(_ any, s grpc.ServerStream) error { return serve(s.Context()) })
				}()
				time.Sleep(time.Hour)
				require.NoError(t, calls.Reset(t.Context(), "all"))
				time.Sleep(time.Minute)
				require.ErrorIs(t, <-ended, ratelimit.ErrLost)
			})
		})
	}
}
