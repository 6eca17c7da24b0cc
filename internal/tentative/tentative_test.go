package tentative_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/tentative"
)

// beats is a store. It records a process's calls, and returns a test's values.
type beats struct {
	mu     sync.Mutex // guards the fields below
	begin  time.Time
	calls  []string
	silent []string
	err    error
	takes  time.Duration // how long a call takes
}

func (b *beats) call(format string, args ...any) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, time.Since(b.begin).String()+fmt.Sprintf(format, args...))
	silent, err, takes := b.silent, b.err, b.takes
	b.mu.Unlock()
	time.Sleep(takes)
	b.mu.Lock()
	return silent, err
}

func (b *beats) Beat(_ string, left time.Duration) ([]string, error) {
	return b.call(": %v left", left)
}
func (b *beats) Silent() ([]string, error) { return b.call(": look") }
func (b *beats) End(string) error {
	_, err := b.call(": end")
	return err
}

func (b *beats) set(silent []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent, b.err = silent, err
}

func (b *beats) taken() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() { b.calls = nil }()
	return b.calls
}

func lasts() (bool, error) { return true, nil }

// begun begins a booking.
func begun(t *testing.T, p *tentative.Process, due time.Duration) *tentative.Booking {
	t.Helper()
	b, err := p.Begin(t.Context(), due)
	require.NoError(t, err)
	return b
}

// made makes a booking due in the given time.
func made(t *testing.T, p *tentative.Process, due time.Duration, confirm func() (bool, error), advance func()) *tentative.Booking {
	t.Helper()
	b := begun(t, p, due)
	b.Made(time.Now().Add(due), tentative.Record{Confirm: confirm, Cancel: func() error { _, err := confirm(); return err }, Advance: advance})
	return b
}

func TestAProcessBeatsWhileItHasTentativeBookings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &beats{begin: time.Now()}
		p := tentative.New(s)
		first := begun(t, p, time.Minute)
		require.Equal(t, []string{"0s: 1m0s left"}, s.taken(), "others know it before its first record")
		require.Len(t, first.Number, tentative.NumberSize)
		require.Equal(t, p.ID, first.Number[:tentative.IDSize])
		time.Sleep(tentative.Every + time.Millisecond)
		require.Equal(t, []string{"250ms: 59.75s left"}, s.taken())
		first.Made(time.Now().Add(time.Hour), tentative.Record{Confirm: lasts})
		second := begun(t, p, time.Minute)
		require.NotEqual(t, first.Number, second.Number)
		require.Empty(t, s.taken())
		second.Made(time.Now().Add(400*time.Millisecond), tentative.Record{Confirm: lasts})
		time.Sleep(3 * tentative.Every)
		require.Equal(t, []string{"500ms: 59m59.751s left", "750ms: 59m59.501s left", "1s: 59m59.251s left"}, s.taken())
		ok, err := first.Confirm()
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"1.001s: end"}, s.taken())
		s.begin = time.Now()
		made(t, p, 400*time.Millisecond, lasts, nil)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"0s: 400ms left", "250ms: 150ms left", "500ms: end"}, s.taken())
		s.begin = time.Now()
		begun(t, p, time.Minute).Drop()
		time.Sleep(time.Hour)
		require.Equal(t, []string{"0s: 1m0s left", "0s: end"}, s.taken())
		s.set(nil, errors.New("no answer"))
		_, err = p.Begin(t.Context(), time.Minute)
		require.Error(t, err)
		time.Sleep(time.Hour)
	})
}

// No booking is made before the store knows the process.
func TestEachBookingFollowsABeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &beats{begin: time.Now(), takes: 100 * time.Millisecond}
		p := tentative.New(s)
		var all sync.WaitGroup
		begin := func() { // while another one's beat, or the process's end, is under way
			b := begun(t, p, time.Minute)
			assert.GreaterOrEqual(t, time.Since(s.begin), 100*time.Millisecond)
			time.Sleep(10 * time.Millisecond)
			b.Drop()
		}
		all.Go(begin)
		time.Sleep(50 * time.Millisecond)
		all.Go(begin)
		all.Wait()
		time.Sleep(50 * time.Millisecond) // during the end
		begun(t, p, time.Minute).Drop()
		time.Sleep(time.Hour)
		require.Equal(t, []string{"0s: 1m0s left", "110ms: end", "210ms: 59.95s left", "310ms: end"}, s.taken())
	})
}

// A process makes another booking at once and goes on beating. The
// earlier booking's end does not make others forget the process.
func TestABookingRightAfterTheLastKeepsItsProcessKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &beats{begin: time.Now(), takes: 10 * time.Millisecond}
		p := tentative.New(s)
		b := made(t, p, time.Minute, lasts, nil)
		time.Sleep(tentative.Every - 5*time.Millisecond) // a beat is under way
		s.taken()
		b.Drop()
		b = made(t, p, time.Minute, lasts, nil)
		time.Sleep(time.Second)
		for _, call := range s.taken() {
			require.NotContains(t, call, "end")
		}
		b.Drop()
		time.Sleep(time.Second)
		calls := s.taken()
		require.Contains(t, calls[len(calls)-1], "end")
	})
}

func TestACallerLeavesWhileItsProcessBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &beats{begin: time.Now(), takes: 10 * time.Second}
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		_, err := tentative.New(s).Begin(ctx, time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(s.begin))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"0s: 1m0s left", "10s: end"}, s.taken())
	})
}

func TestABookingIsConfirmedOnce(t *testing.T) {
	for _, lasts := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			calls, failed := 0, errors.New("no answer")
			b := made(t, tentative.New(new(beats)), time.Hour, func() (bool, error) {
				if calls++; calls == 1 {
					return false, failed
				}
				return lasts, nil
			}, nil)
			_, err := b.Confirm()
			require.ErrorIs(t, err, failed)
			for range 2 {
				ok, err := b.Confirm()
				require.NoError(t, err)
				require.Equal(t, lasts, ok)
			}
			for actual := range 2 {
				settled, unsettled := []int(nil), errors.New("not settled")
				err = b.Settle(actual, func(actual int) error { settled = append(settled, actual); return unsettled })
				require.Equal(t, 2, calls)
				if lasts {
					require.ErrorIs(t, err, unsettled)
					require.Equal(t, []int{actual}, settled)
				} else {
					require.NoError(t, err)
					require.Empty(t, settled)
				}
			}
			time.Sleep(time.Minute)
		})
	}
}

// A tentative booking is canceled in one call. If the call fails, it is repeated after each beat.
func TestABookingIsCanceledInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed, s := errors.New("no answer"), &beats{begin: time.Now()}
		var canceled []time.Duration
		p := tentative.New(s)
		b := begun(t, p, time.Hour)
		b.Made(time.Now().Add(time.Hour), tentative.Record{Cancel: func() error {
			if canceled = append(canceled, time.Since(s.begin)); len(canceled) < 3 {
				return failed
			}
			return nil
		}})
		settle := func(int) error { t.Error("it is settled"); return nil }
		require.ErrorIs(t, b.Settle(0, settle), failed)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond}, canceled)
		require.Equal(t, []string{"0s: 1h0m0s left", "250ms: 59m59.75s left", "500ms: 59m59.5s left", "500ms: end"}, s.taken())
		require.NoError(t, b.Settle(0, settle))
		lasts, err := b.Confirm()
		require.NoError(t, err)
		require.False(t, lasts)
	})
}

// If it is unknown whether a booking was made, the process looks for it until it would be due.
func TestALostBookingIsLookedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &beats{begin: time.Now()}
		var found []time.Duration
		begun(t, tentative.New(s), time.Second).Lost(func() error {
			found = append(found, time.Since(s.begin))
			return errors.New("no answer")
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond}, found)
		require.Equal(t, "1s: end", s.taken()[4])
	})
}

// A process beats even if its bookings take long to move up. Otherwise it would seem to be dead, too.
func TestAProcessBeatsWhileItsBookingsMoveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &beats{begin: time.Now()}
		p := tentative.New(s)
		var moved atomic.Int32
		for range 100 {
			made(t, p, time.Minute, lasts, func() {
				time.Sleep(time.Second)
				moved.Add(1)
			})
		}
		s.set([]string{"other"}, nil)
		s.taken()
		time.Sleep(5*time.Second + tentative.Every/2)
		require.EqualValues(t, 64, moved.Load(), "sixteen at the same time, since the first beat")
		require.Len(t, s.taken(), 20)
		time.Sleep(time.Minute)
		require.EqualValues(t, 100, moved.Load())
	})
}

func TestBookingsAdvanceWhenAProcessHasFallenSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(beats)
		p := tentative.New(s)
		var advanced [][]string
		last := made(t, p, time.Hour, lasts, func() { advanced = append(advanced, p.Beaten()) })
		first := made(t, p, time.Hour, lasts, nil)
		for i, c := range []struct {
			silent []string
			err    error
			want   int
		}{
			{nil, nil, 0},
			{[]string{p.ID}, nil, 0},
			{[]string{p.ID, "other"}, nil, 1},
			{[]string{"other", p.ID}, nil, 0},
			{[]string{"other", "third"}, nil, 1},
			{[]string{"fourth"}, errors.New("no answer"), 0},
			{[]string{"third"}, nil, 0},
			{nil, nil, 0},
			{[]string{"third"}, nil, 1},
		} {
			advanced = nil
			s.set(c.silent, c.err)
			time.Sleep(tentative.Every)
			synctest.Wait()
			if assert.Len(t, advanced, c.want, "beat %d", i); c.want > 0 {
				assert.Equal(t, c.silent, advanced[0])
			}
		}
		first.Drop()
		last.Drop()
		time.Sleep(time.Minute)
	})
}

func TestOthersAreLookedForRarely(t *testing.T) {
	s := new(beats)
	p := tentative.New(s)
	every := tentative.Every.Microseconds()
	for i, c := range []struct {
		key     string
		reading int64
		silent  []string // from this reading on
		err     error
		want    []string
		looks   int
	}{
		{"a", 1, nil, nil, nil, 1},
		{"a", every, []string{"x"}, nil, nil, 0},
		{"a", every + 1, []string{"x"}, nil, []string{"x"}, 1},
		{"a", every + 1, []string{"x"}, nil, nil, 0},
		{"b", 2 * every, []string{"x"}, nil, []string{"x"}, 0},
		{"b", 2*every + 1, []string{"x"}, nil, nil, 1},
		{"a", 3*every + 1, []string{"y", "x"}, nil, []string{"y", "x"}, 1},
		{"b", 3*every + 1, []string{"y", "x"}, nil, []string{"y", "x"}, 0},
		{"b", 7 * every, []string{"y", "x"}, nil, nil, 1},
		{"b", 8 * every, []string{"y", "x"}, nil, []string{"y", "x"}, 1}, // a second later
		{"a", 9 * every, []string{"x"}, errors.New("no answer"), nil, 1},
		{"b", 9 * every, []string{"x"}, nil, nil, 0},
		{"b", every, []string{"x"}, nil, []string{"x"}, 1}, // the clock was set back
	} {
		s.set(c.silent, c.err)
		assert.Equal(t, c.want, p.Look(c.key, c.reading), "look %d", i)
		assert.Len(t, s.taken(), c.looks, "look %d", i)
	}
	p.Unlook("b")
	assert.NotNil(t, p.Look("b", every), "the look has failed")
	assert.Nil(t, p.Look("b", every))
	for i := range 5000 {
		p.Look(string(rune(1000+i)), every)
	}
	assert.NotNil(t, p.Look("z", every), "it remembers a thousand keys")
	assert.NotNil(t, p.Look("z", every))
	assert.NotNil(t, p.Look("b", 2*every))
}
