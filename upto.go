package ratelimit

import (
	"context"
	"errors"

	"github.com/weir-go/ratelimit/internal/ctxwait"
	"github.com/weir-go/ratelimit/internal/nilcheck"
)

// upToTries is how often TakeUpTo tries to take what it was told remains.
const upToTries = 4

// TakeUpTo spends as much of a key's budget as there is, at most most, on any limiter, and says
// how much it granted: for work that can be done in parts, such as rows of an import or
// bytes of a download. A most above the capacity is no error. A most of 0 grants 0, and one below
// zero is an [ErrNegativeCost].
//
// The Decision is the one of the Take that granted. If nothing is granted, it is a denial: if
// nothing else is spent, at least 1 is granted after RetryAfter.
//
// It asks [Peek] how much remains, or Take if the limiter has no Peek, and then takes that. If
// others take it first, it tries again with what they left. After four such tries it grants 0,
// and RetryAfter is that of the last of them. Each of its denied tries is a denial as any
// other: it is told to OnDecision, and may be a strike of package ban.
//
// The errors are those of the limiter, and then nothing is granted. One that wraps
// [ErrExceedsLimit] says that not even a cost of 1 can ever pass. It is safe for concurrent use.
func TakeUpTo[K any](ctx context.Context, l Limiter[K], key K, most int) (granted int, d Decision, err error) {
	if nilcheck.IsNil(l) {
		return 0, d, errors.New("ratelimit: TakeUpTo was given no limiter")
	}
	ctx = ctxwait.OrBackground(ctx)
	switch {
	case most < 0:
		return 0, d, negativeCostError(most)
	case most == 0:
		d, err = l.Take(ctx, key, 0)
		return 0, d, err
	}
	n, known := most, true // whether n is what the limiter says that there is
	if most > 1 {          // else Take says all there is to say
		switch d, err = Peek(ctx, l, key, 1); {
		case err == nil:
			n = d.upTo(most)
		case errors.Is(err, errors.ErrUnsupported):
			known = false
		default:
			d.Allowed = false
			return 0, d, err
		}
	}
	for tries := 0; ; {
		d, err = l.Take(ctx, key, n)
		switch {
		case errors.Is(err, ErrExceedsLimit) && n > 1: // there was no Peek, or the limit is another by now
			n = d.below(n)
			continue
		case err != nil:
			d.Allowed = false
			return 0, d, err
		case d.Allowed:
			return n, d, nil
		case n == 1:
			return 0, d, nil
		}
		if known {
			tries++
		}
		if known = true; tries == upToTries {
			return 0, d, nil
		}
		n = d.upTo(most)
	}
}

// upTo returns what to take of what remains. If nothing does, a cost of 1 finds out when
// something will.
func (d *Decision) upTo(most int) int { return min(most, max(1, d.Remaining)) }

// below returns what to take if n is more than can ever be allowed: what the decision says, and
// else half of it.
func (d *Decision) below(n int) int {
	for _, less := range [...]int{d.Remaining, d.Limit.Capacity()} {
		if 0 < less && less < n {
			return less
		}
	}
	return n / 2
}
