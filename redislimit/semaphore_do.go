package redislimit

import (
	"context"
	"errors"

	"github.com/weir-go/ratelimit/internal/wait"
)

// Do calls f while it holds n slots of the key, which it acquires as [Semaphore.Acquire] does, extends every third of Hold, in one call for up to 64 permits of a server, and
// releases when f has returned or panicked. So f may take longer than Hold. If the slots have ended all the same, for example because Redis was
// down for longer than Hold or the key was reset, the context of f ends with the cause [ErrLost]. It returns Acquire's error, or the
// error of f, joined with ErrLost if the slots were lost and with the error of a failed release.
func (s *Semaphore) Do(ctx context.Context, key string, n int, f func(context.Context) error) (err error) {
	p, err := s.Acquire(ctx, key, n)
	if err != nil {
		return err
	}
	within, lose := context.WithCancelCause(wait.OrBackground(ctx))
	stop := s.keep(p, lose)
	defer func() {
		stop()
		lose(nil)
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
