package turns_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/turns"
)

// tentatively is a store. Its first booking is tentative: it is due after ahead,
// and its confirmation takes some time. Later bookings need no confirmation.
type tentatively struct {
	mu        sync.Mutex // guards the fields below
	ahead     time.Duration
	takes     time.Duration
	lasts     bool
	fails     error
	failures  int // how many confirmations fail
	confirmed []time.Duration
	back      []int
	calls     int
	begin     time.Time
}

func (s *tentatively) call(turns.Request) (a turns.Answer[string], err error) {
	a = turns.Answer[string]{Allowed: true, Delay: s.ahead, Pace: turns.Pace{Units: 1, Per: 10 * time.Second}}
	a.Settle = func(actual int) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.back = append(s.back, actual)
		return nil
	}
	if s.calls++; s.calls > 1 {
		a.Delay = 500 * time.Millisecond
		return a, nil
	}
	a.Confirm = func() (bool, error) {
		s.mu.Lock()
		s.confirmed = append(s.confirmed, time.Since(s.begin))
		s.mu.Unlock()
		time.Sleep(s.takes)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.confirmed) <= s.failures {
			return false, s.fails
		}
		return s.lasts, nil
	}
	return a, nil
}

// wait returns once a line's caller is served, or has left.
func (s *tentatively) wait(t *testing.T, patience time.Duration) (time.Duration, error) {
	s.begin = time.Now()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	defer time.AfterFunc(patience, leave).Stop()
	err := new(turns.Lines[string]).Wait(ctx, "k", 1, s.call)
	served := time.Since(s.begin)
	time.Sleep(time.Minute) // all calls have ended
	return served, err
}

func TestATentativeBookingServesItsCallerOnceItIsConfirmed(t *testing.T) {
	const ahead = 10 * time.Second
	failed := errors.New("no answer")
	for name, c := range map[string]struct {
		store     *tentatively
		patience  time.Duration
		served    time.Duration
		err       error
		confirmed []time.Duration
		back      []int
	}{
		"in time":         {&tentatively{lasts: true, takes: time.Millisecond}, time.Hour, ahead, nil, []time.Duration{9 * time.Second}, nil},
		"late":            {&tentatively{lasts: true, takes: 3 * time.Second}, time.Hour, 12 * time.Second, nil, []time.Duration{9 * time.Second}, nil},
		"given back":      {&tentatively{takes: time.Millisecond}, time.Hour, 9501 * time.Millisecond, nil, []time.Duration{9 * time.Second}, nil},
		"given back late": {&tentatively{takes: 2 * time.Second}, time.Hour, 11500 * time.Millisecond, nil, []time.Duration{9 * time.Second}, nil},
		"the caller left": {&tentatively{lasts: true}, 5 * time.Second, 5 * time.Second, context.Canceled, nil, []int{0}},
		"left while it is confirmed": {&tentatively{lasts: true, takes: 3 * time.Second}, 10500 * time.Millisecond, 10500 * time.Millisecond, context.Canceled,
			[]time.Duration{9 * time.Second}, []int{0}},
		"repeated": {&tentatively{lasts: true, fails: failed, failures: 2}, time.Hour, ahead, nil,
			[]time.Duration{9 * time.Second, 9100 * time.Millisecond, 9200 * time.Millisecond}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := c.store
				s.ahead = ahead
				served, err := s.wait(t, c.patience)
				require.ErrorIs(t, err, c.err)
				require.Equal(t, c.served, served)
				require.Equal(t, c.confirmed, s.confirmed)
				require.Equal(t, c.back, s.back)
			})
		})
	}
}

func TestABookingThatCannotBeConfirmedEndsTheWaitAtItsInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("no answer")
		s := &tentatively{ahead: 5 * time.Second, fails: failed, failures: 1000}
		served, err := s.wait(t, time.Hour)
		require.ErrorIs(t, err, failed)
		require.Equal(t, 5*time.Second, served)
		require.Len(t, s.confirmed, 10)
		require.Equal(t, []int{0}, s.back)
	})
}

// If a caller leaves, its booking serves the next caller, and this one confirms it.
func TestATentativeBookingPassesToTheNextCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tentatively{ahead: 5 * time.Second, lasts: true, begin: time.Now()}
		var line turns.Lines[string]
		ctx, leave := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- line.Wait(ctx, "k", 1, s.call) }()
		synctest.Wait()
		go func() { second <- line.Wait(t.Context(), "k", 1, s.call) }()
		synctest.Wait()
		time.Sleep(time.Second)
		leave()
		require.ErrorIs(t, <-first, context.Canceled)
		require.NoError(t, <-second)
		require.Equal(t, 5*time.Second, time.Since(s.begin))
		require.Equal(t, []time.Duration{4 * time.Second}, s.confirmed)
		require.Empty(t, s.back)
		require.Equal(t, 1, s.calls)
	})
}

// The store may move a booking up, before or after its confirmation. The caller
// is then served at the earlier time, and the booking confirmed by then.
func TestAStoreMovesABookingUp(t *testing.T) {
	for moves, confirmed := range map[time.Duration]time.Duration{time.Second: 5 * time.Second, 5500 * time.Millisecond: 5500 * time.Millisecond, 9500 * time.Millisecond: 9 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var lines turns.Lines[string]
			begin, refs := time.Now(), 0
			var confirmations []time.Duration
			call := func(turns.Request) (turns.Answer[string], error) {
				a := turns.Answer[string]{Allowed: true, Delay: 10 * time.Second, Ref: refs, Pace: turns.Pace{Units: 1, Per: 5 * time.Second, Spaced: true}}
				if refs++; refs > 1 {
					a.Delay = time.Until(begin.Add(10500 * time.Millisecond))
					return a, nil
				}
				a.Confirm = func() (bool, error) {
					confirmations = append(confirmations, time.Since(begin))
					return true, nil
				}
				return a, nil
			}
			first, second := make(chan time.Duration, 1), make(chan time.Duration, 1)
			wait := func(served chan time.Duration) {
				assert.NoError(t, lines.Wait(t.Context(), "k", 1, call))
				served <- time.Since(begin)
			}
			go wait(first)
			time.AfterFunc(moves, func() {
				lines.Earlier("none", 0, time.Second)
				lines.Earlier("k", 7, time.Second)
				lines.Earlier("k", 0, min(4*time.Second, 10*time.Second-moves))
			})
			time.Sleep(100 * time.Millisecond)
			go wait(second)
			require.Equal(t, max(6*time.Second, moves), <-first)
			require.Equal(t, []time.Duration{confirmed}, confirmations)
			require.Equal(t, 10500*time.Millisecond, <-second)
			require.Equal(t, 2, refs)
		})
	}
}
