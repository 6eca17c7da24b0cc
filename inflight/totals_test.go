package inflight_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/inflight"
)

func TestTotalsCountAllKeysAlsoForgottenOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 1, &options{Total: 2, MaxKeys: 2, MaxQueue: 1})
		a := take(t, l, "a", 1)
		_, err := l.TryAcquire("a", 1)
		require.Error(t, err)
		go func() {
			p, err := l.Acquire(t.Context(), "a", 1)
			assert.NoError(t, err)
			p.Release()
		}()
		synctest.Wait()
		b := take(t, l, "b", 1)
		want := inflight.Totals{InFlight: 2, Limit: 2, Queued: 1, Keys: 2, Shed: 1}
		assert.Equal(t, want, l.Totals())
		time.Sleep(30 * time.Millisecond)
		a.Release()
		b.Release()
		synctest.Wait()
		take(t, l, "c", 1).Release()
		take(t, l, "d", 1).Release()
		want = inflight.Totals{Limit: 2, Keys: 2, Shed: 1}
		want.Waits[5] = 1 // the bucket from 25 to 50 ms
		assert.Equal(t, want, l.Totals())
	})
}

func TestTotalsHaveNoLimitIfThereIsNone(t *testing.T) {
	l := newLimiter(t, 3, &options{MaxWaiting: 5, Adaptive: inflight.Learn(nil)})
	take(t, l, "a", 2)
	assert.Equal(t, inflight.Totals{InFlight: 2, Keys: 1, Adaptive: true}, l.Totals())
}
