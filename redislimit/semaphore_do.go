package redislimit

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Do calls f while it holds n slots of the key, which it acquires as [Semaphore.Acquire] does, extends every third of Hold, and releases
// when f has returned or panicked. So f may take longer than Hold. If the slots have ended all the same, for example because Redis was
// down for longer than Hold or the key was reset, the context of f ends with the cause [ErrLost]. It returns Acquire's error, or the
// error of f, joined with ErrLost if the slots were lost and with the error of a failed release.
func (s *Semaphore) Do(ctx context.Context, key string, n int, f func(context.Context) error) (err error) {
	p, err := s.Acquire(ctx, key, n)
	if err != nil {
		return err
	}
	within, lose := context.WithCancelCause(wait.OrBackground(ctx))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		p.keep(within, stop, lose)
	}()
	defer func() {
		close(stop)
		lose(nil)
		<-stopped
		released := p.Release(ctx)
		switch {
		case errors.Is(context.Cause(within), ErrLost) && !errors.Is(err, ErrLost):
			err = errors.Join(err, ErrLost)
		case released != nil && !errors.Is(err, released):
			err = errors.Join(err, released)
		}
	}()
	return f(within)
}

// keep extends the hold until stop is closed. The slots are lost if Redis says so, or if it has not answered for the whole Hold.
func (p *Permit) keep(ctx context.Context, stop <-chan struct{}, lose context.CancelCauseFunc) {
	hold := p.of.hold
	ticker := time.NewTicker(max(hold/3, time.Millisecond/3))
	defer ticker.Stop()
	for last := p.ends.Add(-hold); ; {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		sent := time.Now()
		switch err := p.Extend(context.WithoutCancel(ctx)); {
		case err == nil:
			last = sent
		case errors.Is(err, ratelimit.ErrLost), time.Since(last) >= hold:
			lose(ErrLost)
			return
		}
	}
}
