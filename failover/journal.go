package failover

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/failures"
)

// lineEvery is how often decisions without the primary are logged.
const lineEvery = time.Minute

// journal logs that decisions are degraded, with the cause: when that begins, when the breaker
// opens, once a minute, and when it closes. A breaker that opens and closes again and again is
// logged as opening once a minute.
type journal struct {
	log  *slog.Logger
	told func(from, to State) // the user's; may be nil

	mu        sync.Mutex // guards the fields below; the logger is called without it
	kind      outcome    // of the last failure
	cause     error      // nil if there was none
	decisions uint64     // degraded, since the last line that told
	next      time.Time  // no line about decisions before
	nextOpen  time.Time  // no line about the breaker's opening before
	openTold  bool       // the breaker's last opening was logged
	opened    int        // openings that were not
}

// failed takes note of a failure.
func (j *journal) failed(o outcome, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.kind, j.cause = o, err
}

// degraded takes note of a degraded decision.
func (j *journal) degraded() {
	j.mu.Lock()
	j.decisions++
	now := time.Now()
	if now.Before(j.next) {
		j.mu.Unlock()
		return
	}
	j.next = now.Add(lineEvery)
	args := j.argsLocked()
	j.mu.Unlock()
	j.write(slog.LevelWarn, "failover: deciding without the primary limiter", args)
}

// argsLocked tells what there is to tell of degraded decisions, and begins to count anew.
func (j *journal) argsLocked() []any {
	args := []any{"decisions", j.decisions}
	j.decisions = 0
	if j.cause != nil {
		args = append(args, "failure", j.kind.String(), "error", j.cause)
	}
	if j.opened > 0 {
		args = append(args, "opened", j.opened)
		j.opened = 0
	}
	return args
}

// changed logs a change of state, and tells the user's function of it. Neither may keep the
// breaker from what comes next: a panic is logged, and goes no further.
func (j *journal) changed(c change) {
	j.logChange(c)
	if j.told == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			j.write(slog.LevelError, "failover: OnStateChange panicked", []any{"panic", failures.PanicText(p)})
		}
	}()
	j.told(c.from, c.to)
}

func (j *journal) logChange(c change) {
	if c.forced {
		return // Force has a line of its own
	}
	now := time.Now()
	j.mu.Lock()
	switch {
	case c.from == StateClosed && c.to == StateOpen:
		if j.openTold = !now.Before(j.nextOpen); !j.openTold {
			j.opened++
			break
		}
		j.nextOpen, j.next = now.Add(lineEvery), now.Add(lineEvery)
		args := append(j.argsLocked(), "from", c.from.String(), "to", c.to.String())
		j.mu.Unlock()
		j.write(slog.LevelWarn, "failover: the breaker is open", args)
		return
	case c.to == StateClosed && j.openTold:
		args := append(j.argsLocked(), "from", c.from.String(), "to", c.to.String(), "after", now.Sub(c.since).Round(time.Millisecond))
		j.mu.Unlock()
		j.write(slog.LevelInfo, "failover: the breaker is closed", args)
		return
	}
	j.mu.Unlock()
}

// forced logs a call of Force.
func (j *journal) forced(to State) {
	text := "failover: the breaker is forced " + to.String()
	if to == StateHalfOpen {
		text = "failover: the breaker is forced no more"
	}
	j.write(slog.LevelWarn, text, nil)
}

// write writes a line. A logger that panics costs the line, and no decision.
func (j *journal) write(level slog.Level, text string, args []any) {
	defer func() { _ = recover() }()
	j.log.Log(context.Background(), level, text, args...)
}
