package grpclimit_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// Calls take turns on two slots, and are sent at the limiter's pace.
func TestCallsInFlightAreBounded(t *testing.T) {
	for way := range ways {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(nil)
				client, c := pacedInBubble(t, s, byTarget(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 1)), grpclimit.ClientOptions{MaxInFlight: 2})
				var all sync.WaitGroup
				for range 6 {
					all.Go(func() { ok(t.Context(), t, client, way) })
				}
				all.Wait()
				synctest.Wait()
				assert.Zero(t, c.Stats().InFlight)
				for i, at := range s.times() {
					assert.Equal(t, time.Duration(i)*100*time.Millisecond, at)
				}
			})
		})
	}
}

// A stream holds its slot until it ends, however it does.
func TestAStreamHoldsItsSlotUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, c := pacedInBubble(t, newScript(nil), unlimited(t), grpclimit.ClientOptions{MaxInFlight: 1})
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := client.FullDuplexCall(ctx)
			require.NoError(t, err)
			next := make(chan error)
			go func() { _, err := client.UnaryCall(t.Context(), new(testgrpc.SimpleRequest)); next <- err }()
			synctest.Wait()
			assert.EqualValues(t, 1, c.Stats().InFlight)
			select {
			case <-next:
				t.Error("a call is sent beside the stream")
			default:
			}
			cancel()
			_, err = stream.Recv()
			require.Error(t, err)
			require.NoError(t, <-next)
		}
		assert.Zero(t, c.Stats().InFlight)
	})
}
