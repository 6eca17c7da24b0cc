package redislimit

import (
	"context"
	"errors"

	"github.com/weir-go/ratelimit/internal/wait"
)

// Do calls f while it holds n slots of the key. It acquires the slots as [Semaphore.Acquire] does, and releases them
// when f has returned or panicked. It extends them every third of Hold, so f may take longer than Hold. One call
// extends up to 64 permits of a server.
//
// The slots may end nevertheless, for example because Redis was down for longer than Hold or the key was reset. Then
// the context of f ends with the cause [ErrLost]. Do returns Acquire's error, or the error of f. It joins ErrLost to
// the error of f if the slots were lost, and the error of a failed release.
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
