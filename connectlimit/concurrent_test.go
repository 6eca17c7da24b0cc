package connectlimit_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/connectlimit"
)

// Under a Concurrent limit, a call holds its unit until its handler ends, however long it runs.
func TestACallHoldsItsUnitUntilItsHandlerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(1, time.Minute), nil))
		i := ratelimit.Must(connectlimit.New(ratelimit.Must(ratelimit.All(ratelimit.By(calls, func(*connectlimit.Call) (string, error) { return "all", nil }))), nil))
		end, ended := make(chan bool), make(chan error, 1)
		serve := i.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { <-end; return nil, nil })
		call := func() error {
			_, err := serve(t.Context(), connect.NewRequest(new(struct{})))
			return err
		}
		for range 2 {
			go func() { ended <- call() }()
			time.Sleep(time.Hour) // sixty times as long as the hold
			require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(call()))
			end <- true
			require.NoError(t, <-ended)
		}
	})
}

// When a call's units have lapsed, its handler's context ends.
func TestTheContextOfACallEndsWhenUnitsHaveLapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(1, time.Minute), nil))
		all := ratelimit.Must(ratelimit.All(ratelimit.By(calls, func(*connectlimit.Call) (string, error) { return "all", nil })))
		i := ratelimit.Must(connectlimit.New(all, &connectlimit.Options{Logger: slog.New(slog.DiscardHandler)}))
		ended := make(chan error, 1)
		go func() {
			_, err := i.WrapUnary(func(ctx context.Context, _ connect.AnyRequest) (connect.AnyResponse, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			})(t.Context(), connect.NewRequest(new(struct{})))
			ended <- err
		}()
		time.Sleep(time.Hour)
		require.NoError(t, calls.Reset(t.Context(), "all"))
		time.Sleep(time.Minute)
		require.ErrorIs(t, <-ended, ratelimit.ErrLost)
	})
}
