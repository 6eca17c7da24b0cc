package redislimit

import (
	"context"
	"errors"

	"github.com/weir-go/ratelimit/internal/wait"
)

// Do calls f while it holds n slots of the key. It acquires the slots as [Semaphore.Acquire]
// does, and releases them when f has returned or panicked. It extends them every third of
// Hold, so f may take longer than Hold. One call extends up to 64 permits on a server.
//
// The slots may end nevertheless, for example because Redis was down for longer than Hold or the
// key was reset. Then f's context ends with the cause [ErrLost]. Do returns Acquire's error, or
// f's. To f's error it joins ErrLost if the slots were lost, and the error if the release failed.
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
