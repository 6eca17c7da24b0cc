package turns_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/turns"
)

// far is a store. It books an instant three seconds ahead, and later moves the booking.
type far struct {
	pace     turns.Pace
	takes    time.Duration // how long the call takes to move the booking
	to       time.Duration // how far ahead the booking is after this call
	denied   bool
	err      error
	unsure   bool
	panics   bool
	requests []turns.Request
	at       []time.Duration // the requests' times
	back     []string        // the bookings given back
	begin    time.Time
}

func (f *far) booking(name string, delay time.Duration) turns.Answer[string] {
	return turns.Answer[string]{Allowed: true, Delay: delay, Pace: f.pace, Ref: name, Settle: func(int) error {
		f.back = append(f.back, name)
		return nil
	}}
}

func (f *far) call(q turns.Request) (turns.Answer[string], error) {
	f.requests, f.at = append(f.requests, q), append(f.at, time.Since(f.begin))
	if q.Instead == nil {
		return f.booking([]string{"first", "second"}[min(len(f.requests)/2, 1)], []time.Duration{3 * time.Second, 0}[min(len(f.requests)/2, 1)]), nil
	}
	time.Sleep(f.takes)
	switch {
	case f.panics:
		panic("no limit")
	case f.err != nil:
		return turns.Answer[string]{Unsure: f.unsure}, f.err
	case f.denied:
		return turns.Answer[string]{Retry: time.Second, Pace: f.pace}, nil
	}
	return f.booking("moved", f.to), nil
}

// wait returns once a line's caller is served, or has left.
func (f *far) wait(t *testing.T, patience time.Duration) (time.Duration, error) {
	f.begin = time.Now()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	defer time.AfterFunc(patience, leave).Stop()
	err := new(turns.Lines[string]).Wait(ctx, "k", 2, f.call)
	served := time.Since(f.begin)
	time.Sleep(time.Minute)
	synctest.Wait() // all calls have ended
	return served, err
}

func TestAFarBookingMovesUpOnceIfThereIsRoom(t *testing.T) {
	second, failed := time.Second, errors.New("no answer")
	bucket := turns.Pace{Units: 1, Per: second}
	for name, c := range map[string]struct {
		store    far
		patience time.Duration
		calls    int
		served   time.Duration
		err      error
		back     []string
	}{
		"room":                 {far{pace: bucket, to: 100 * time.Millisecond}, time.Hour, 2, 2100 * time.Millisecond, nil, nil},
		"no room":              {far{pace: bucket, denied: true}, time.Hour, 2, 3 * second, nil, nil},
		"an error":             {far{pace: bucket, err: failed}, time.Hour, 2, 3 * second, nil, nil},
		"a late answer":        {far{pace: bucket, takes: 2 * second}, time.Hour, 2, 4 * second, nil, nil},
		"late and no room":     {far{pace: bucket, takes: 2 * second, denied: true}, time.Hour, 2, 4 * second, nil, nil},
		"no answer":            {far{pace: bucket, err: failed, unsure: true}, time.Hour, 3, 2 * second, nil, nil},
		"the caller leaves":    {far{pace: bucket, to: 500 * time.Millisecond}, 2200 * time.Millisecond, 2, 2200 * time.Millisecond, context.Canceled, []string{"moved"}},
		"it leaves meanwhile":  {far{pace: bucket, to: 500 * time.Millisecond, takes: second}, 2500 * time.Millisecond, 2, 2500 * time.Millisecond, context.Canceled, []string{"moved"}},
		"and there is no room": {far{pace: bucket, denied: true, takes: second}, 2500 * time.Millisecond, 2, 2500 * time.Millisecond, context.Canceled, []string{"first"}},
		"windows":              {far{pace: turns.Pace{Units: 1, Per: second, AtOnce: true}}, time.Hour, 1, 3 * second, nil, nil},
		"a queue":              {far{pace: turns.Pace{Units: 1, Per: second, Spaced: true}}, time.Hour, 1, 3 * second, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &c.store
				served, err := f.wait(t, c.patience)
				require.ErrorIs(t, err, c.err)
				require.Equal(t, c.served, served)
				require.Len(t, f.requests, c.calls)
				require.Equal(t, c.back, f.back)
				if c.calls > 1 {
					require.Equal(t, turns.Request{Cost: 2, Ahead: second - time.Millisecond, Between: true, Instead: "first"}, f.requests[1])
					require.Equal(t, 2*second, f.at[1])
				}
			})
		})
	}
}

func TestACallThatMovesABookingPanicsInTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{pace: turns.Pace{Units: 1, Per: time.Second}, panics: true}
		require.PanicsWithValue(t, "no limit", func() { _, _ = f.wait(t, time.Hour) })
	})
}
