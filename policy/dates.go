package policy

import (
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
)

// span is a setting's time in force, from an instant on and before another. The zero span is unbounded.
type span struct{ from, until time.Time }

func (s span) always() bool { return s == span{} }

func (s span) holds(at time.Time) bool {
	return (s.from.IsZero() || !at.Before(s.from)) && (s.until.IsZero() || at.Before(s.until))
}

// meets reports whether two spans overlap.
func (s span) meets(other span) bool {
	before := func(end, begin time.Time) bool { return !end.IsZero() && !begin.IsZero() && !begin.Before(end) }
	return !before(s.until, other.from) && !before(other.until, s.from)
}

// check returns an error if the span is empty.
func (s span) check() error {
	if !s.from.IsZero() && !s.until.IsZero() && !s.from.Before(s.until) {
		return fmt.Errorf("%s, want an instant after from, %s", s.until.Format(time.RFC3339Nano), s.from.Format(time.RFC3339Nano))
	}
	return nil
}

// String returns the span for people.
func (s span) String() string {
	text := ""
	if !s.from.IsZero() {
		text = "from " + s.from.Format(time.RFC3339Nano)
	}
	if !s.until.IsZero() {
		if text != "" {
			text += " "
		}
		text += "until " + s.until.Format(time.RFC3339Nano)
	}
	return text
}

func (r *Rule) span() span     { return span{r.From, r.Until} }
func (o *Override) span() span { return span{o.From, o.Until} }

// override is a key's limit, and its time in force.
type override struct {
	limit *ratelimit.Limit
	span
}
