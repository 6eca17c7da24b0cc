package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/keyfunc"
)

// An error has one cause even if it wraps several of the library's
// errors. If the request's context has ended, the cause is ofDeparted.
func TestEachErrorHasOneCause(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	both := func(a, b error) error { return fmt.Errorf("x: %w: %w", a, b) }
	for _, test := range []struct {
		err               error
		cause, ofDeparted outcome.Cause
	}{
		{nil, outcome.CauseNone, outcome.CauseNone},
		{errors.New("disk full"), outcome.CauseOther, outcome.CauseGone},
		{ratelimit.ErrUnavailable, outcome.CauseUnavailable, outcome.CauseGone},
		{both(ratelimit.ErrUnavailable, context.DeadlineExceeded), outcome.CauseUnavailable, outcome.CauseGone},
		{ratelimit.ErrTableFull, outcome.CauseTableFull, outcome.CauseTableFull},
		{keyfunc.ErrNoKey, outcome.CauseKey, outcome.CauseKey},
		{keyfunc.ErrMalformedKey, outcome.CauseKey, outcome.CauseKey},
		{ratelimit.ErrInvalidKey, outcome.CauseKey, outcome.CauseKey},
		{both(keyfunc.ErrMisconfigured, keyfunc.ErrNoKey), outcome.CauseMisconfigured, outcome.CauseMisconfigured},
		{ratelimit.ErrNegativeCost, outcome.CauseCost, outcome.CauseCost},
		{ratelimit.ErrBlocked, outcome.CauseBlocked, outcome.CauseBlocked},
		{ratelimit.ErrExceedsLimit, outcome.CauseExceeds, outcome.CauseExceeds},
		{ratelimit.ErrLimited, outcome.CauseLimited, outcome.CauseLimited},
		{context.DeadlineExceeded, outcome.CauseEnded, outcome.CauseGone},
		{context.Canceled, outcome.CauseEnded, outcome.CauseGone},
	} {
		for _, err := range []error{test.err, errors.Join(test.err, nil)} {
			assert.Equal(t, test.cause, outcome.CauseOf(err), "%v", test.err)
			assert.Equal(t, test.cause, outcome.CauseFor(t.Context(), err), "%v", test.err)
			assert.Equal(t, test.ofDeparted, outcome.CauseFor(gone, err), "%v, after the client has left", test.err)
		}
	}
}

func TestEachCauseHasItsConsequences(t *testing.T) {
	for cause, want := range map[outcome.Cause]struct {
		refused, byClient, failsOpen, rejected, retryable bool
		level                                             slog.Level
	}{
		outcome.CauseOther:         {failsOpen: true, level: slog.LevelError},
		outcome.CauseUnavailable:   {failsOpen: true, retryable: true, level: slog.LevelError},
		outcome.CauseTableFull:     {refused: true, byClient: true, retryable: true, level: slog.LevelError},
		outcome.CauseKey:           {byClient: true, rejected: true, level: slog.LevelInfo},
		outcome.CauseCost:          {byClient: true, level: slog.LevelError},
		outcome.CauseMisconfigured: {level: slog.LevelError},
		outcome.CauseBlocked:       {refused: true, failsOpen: true, level: slog.LevelError},
		outcome.CauseExceeds:       {refused: true, failsOpen: true, level: slog.LevelError},
		outcome.CauseLimited:       {refused: true, failsOpen: true, level: slog.LevelError},
		outcome.CauseEnded:         {failsOpen: true, level: slog.LevelError},
		outcome.CauseGone:          {byClient: true, rejected: true, level: slog.LevelDebug},
	} {
		got := want
		got.refused, got.byClient, got.failsOpen, got.rejected = cause.Refused(), cause.ByClient(), cause.FailsOpen(), cause.Rejected()
		got.retryable, got.level = cause.Retryable(), cause.Level()
		assert.Equal(t, want, got, "cause %d", cause)
	}
}

func TestACallThatWasSentMayHaveBeenCharged(t *testing.T) {
	broken := errors.New("broken pipe")
	for _, sent := range []bool{false, true} {
		err := error(&outcome.Undecided{Cause: broken, Sent: sent})
		assert.ErrorIs(t, err, broken)
		assert.Equal(t, outcome.CauseUnavailable, outcome.CauseOf(err))
		assert.Equal(t, sent, errors.Is(err, ratelimit.ErrUnanswered))
		left := outcome.Ended("pkg", context.Canceled, sent)
		assert.Equal(t, outcome.CauseEnded, outcome.CauseOf(left))
		assert.Equal(t, sent, errors.Is(left, ratelimit.ErrUnanswered))
	}
	assert.EqualError(t, &outcome.Undecided{Cause: broken, Sent: true},
		"ratelimit: unavailable: ratelimit: sent and not answered, so it may have been charged: broken pipe")
	assert.EqualError(t, outcome.Ended("pkg", context.Canceled, false), "pkg: context canceled")
}

// lateTimer is a context whose timer has not fired at its deadline.
type lateTimer struct {
	context.Context
	deadline time.Time
}

func (c lateTimer) Deadline() (time.Time, bool) { return c.deadline, true }

func TestAContextEndsAtItsDeadlineAlthoughItsTimerIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := lateTimer{t.Context(), time.Now().Add(time.Second)}
		time.Sleep(time.Second - time.Nanosecond)
		assert.NoError(t, outcome.EndOf(ctx))
		time.Sleep(time.Nanosecond)
		assert.Equal(t, context.DeadlineExceeded, outcome.EndOf(ctx))
		gone, leave := context.WithCancel(t.Context())
		assert.NoError(t, outcome.EndOf(gone))
		leave()
		assert.Equal(t, context.Canceled, outcome.EndOf(gone))
	})
}
