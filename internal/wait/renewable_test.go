package wait_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/wait"
)

// newRenewable returns a call, and how many of its attempts have begun to wait.
func newRenewable(ctx context.Context) (r *wait.Renewable, waits *int) {
	waits = new(int)
	return &wait.Renewable{Context: ctx, Waits: func() { *waits++ }}, waits
}

func TestAnAttemptEndsWhenItsCallIsRenewed(t *testing.T) {
	for name, waitsBefore := range map[string]bool{"while it waits": true, "before it waits": false} {
		t.Run(name, func(t *testing.T) {
			r, waits := newRenewable(t.Context())
			r.Renew() // nothing is under way
			a := r.Begin()
			require.NoError(t, a.Err())
			if waitsBefore {
				a.Done()
			}
			r.Renew()
			<-a.Done()
			require.Equal(t, 1, *waits)
			require.Equal(t, context.Canceled, a.Err())
			require.Nil(t, wait.Renewed(a, nil))
			require.Nil(t, wait.Renewed(a, errors.New("another")))
			require.Same(t, r, wait.Renewed(a, a.Err()))
			require.NoError(t, wait.Charged(a).Err(), "a charge lasts")
			require.True(t, a.End(a.Err()))

			next := r.Begin()
			require.NoError(t, next.Err())
			require.Equal(t, context.Canceled, a.Err(), "the last attempt stays over")
			require.Same(t, r, wait.RenewableOf(next))
			require.Nil(t, wait.RenewableOf(t.Context()))
			require.False(t, next.End(nil))
		})
	}
}

func TestAnAttemptEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := newRenewable(ctx)
	a := r.Begin()
	done := a.Done()
	cancel()
	<-done
	require.Equal(t, context.Canceled, a.Err())
	r.Renew()
	require.Nil(t, wait.Renewed(a, a.Err()), "the caller has left")
	require.False(t, a.End(a.Err()))
}

func TestAnotherCallUsesAClearedOne(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, waits := newRenewable(ctx)
	cancel()
	require.Equal(t, context.Canceled, r.Begin().Err())
	r.Number = 7
	r.Clear()
	r.Context = t.Context()
	a := r.Begin()
	require.NoError(t, a.Err())
	require.Zero(t, r.Number)
	require.Zero(t, *waits)
}

// If a call is renewed while an attempt begins to wait, the attempt ends.
func TestARenewalIsNotMissed(t *testing.T) {
	for range 2000 {
		r := &wait.Renewable{Context: t.Context(), Waits: func() {}}
		a := r.Begin()
		var wg sync.WaitGroup
		wg.Go(r.Renew)
		<-a.Done()
		require.ErrorIs(t, a.Err(), context.Canceled)
		wg.Wait()
	}
}
