package sqllimit

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/tentative"
)

// unitInTenSeconds is a slow rate.
var unitInTenSeconds = ratelimit.Rate{Units: 1, Per: 10 * time.Second}

// limitsOfTenSeconds are limits by algorithm. Under each, the second unit comes after ten seconds or more.
var limitsOfTenSeconds = map[string]ratelimit.Limit{
	"token bucket":    ratelimit.TokenBucket(unitInTenSeconds, 1),
	"fixed window":    ratelimit.FixedWindow(unitInTenSeconds),
	"sliding log":     ratelimit.SlidingLog(unitInTenSeconds),
	"sliding counter": ratelimit.SlidingCounter(unitInTenSeconds),
	"calendar":        ratelimit.Calendar(1, ratelimit.Minute("UTC")),
}

// diesWaiting books like a Wait that is first in its line. Its process then sends no further beat.
func (l *Limiter) diesWaiting(t *testing.T, cost int) (d ratelimit.Decision, record []byte) {
	t.Helper()
	d, o, err := l.decide(t.Context(), "k", cost, &operation{ahead: math.MaxInt64 / 1000, keep: meter.Booked, far: l.tentative.ID + "1234"})
	require.NoError(t, err)
	require.True(t, d.Allowed)
	_, err = pulse{l}.Beat(l.tentative.ID, d.Delay)
	require.NoError(t, err)
	require.NotNil(t, o.record.key)
	return d, o.record.key
}

func TestTheBookingOfADeadProcessIsGivenBack(t *testing.T) {
	for name, limit := range limitsOfTenSeconds {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			f, db := newFake(t, clock.now)
			dead, other := newLimiter(t, db, limit, patient), newLimiter(t, db, limit, patient)
			take := func() ratelimit.Decision {
				t.Helper()
				d, err := other.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				return d
			}
			require.True(t, dead.Allow("k", 1))
			before := take().RetryAfter
			d, record := dead.diesWaiting(t, 1)
			require.Equal(t, before, d.Delay)
			require.Greater(t, take().RetryAfter, before)
			clock.advance(tentative.Holds - time.Microsecond)
			require.Greater(t, take().RetryAfter, before)
			clock.advance(tentative.Every)
			assert.Equal(t, before-tentative.Holds-tentative.Every+time.Microsecond, take().RetryAfter)
			lasts, err := dead.remove(t.Context(), record)
			require.NoError(t, err)
			assert.False(t, lasts)
			clock.advance(time.Hour)
			require.NoError(t, pulse{other}.End(other.tentative.ID))
			assert.Empty(t, f.keys(":", ";"), "the rows are deleted")
		})
	}
}

// A booking is either confirmed or given back, whichever comes first.
func TestAConfirmedBookingIsNotGivenBack(t *testing.T) {
	for name, limit := range limitsOfTenSeconds {
		clock := newClock()
		_, db := newFake(t, clock.now)
		slow, other := newLimiter(t, db, limit, patient), newLimiter(t, db, limit, patient)
		require.True(t, slow.Allow("k", 1))
		_, record := slow.diesWaiting(t, 1)
		rows, err := other.listed(t.Context(), other.recordsOf("k"))
		require.NoError(t, err)
		require.Len(t, rows, 1)
		lasts, err := slow.remove(t.Context(), record)
		require.NoError(t, err)
		require.True(t, lasts, name)
		before, err := other.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		was, err := other.giveBack(t.Context(), "k", other.plan.Load(), rows[0])
		require.NoError(t, err)
		require.False(t, was, name)
		after, err := other.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, before, after, name)
	}
}

// A stack, too, gives back a dead process's booking when the booking makes it deny.
func TestAStackGivesBackTheBookingOfADeadProcess(t *testing.T) {
	clock := newClock()
	_, db := newFake(t, clock.now)
	limit := ratelimit.TokenBucket(unitInTenSeconds, 1)
	dead, other := newLimiter(t, db, limit, patient), newLimiter(t, db, limit, patient)
	wide, err := New(db, ratelimit.TokenBucket(ratelimit.PerSecond(100), 100), &Options{Name: "wide", Timeout: 20 * time.Second})
	require.NoError(t, err)
	identity := func(key string) (string, error) { return key, nil }
	stack, err := ratelimit.All(ratelimit.By(other, identity), ratelimit.By(wide, identity))
	require.NoError(t, err)
	require.True(t, dead.Allow("k", 1))
	dead.diesWaiting(t, 1)
	clock.advance(tentative.Holds)
	d, err := stack.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.False(t, d.Allowed)
	assert.Equal(t, 10*time.Second-tentative.Holds, d.RetryAfter)
	clock.advance(d.RetryAfter)
	assert.True(t, stack.Allow("k", 1))
}
