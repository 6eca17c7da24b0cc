package failover

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/failures"
)

// lineEvery is how often an outage is logged while it lasts. One that comes back sooner is the same.
const lineEvery = time.Minute

// journal logs outages, each line with the error.
//
// An outage begins when a decision is degraded or the breaker opens. It is over when the breaker has been closed
// and no decision has been degraded for lineEvery. It has a line when it begins; one each minute in which decisions
// are degraded, of which the first tells that the breaker has opened; and one when it ends: when the breaker
// closes, or when it is over if the breaker did not open.
//
// Invariant: by the time d of an outage it has at most 2 + d/lineEvery lines. All but an end's leave one line to
// the end, so that the last line is never a false alarm. Therefore an outage that comes back soon is told of again
// only after up to two minutes.
type journal struct {
	log  *slog.Logger
	told func(from, to State) // the user's; may be nil

	mu     sync.Mutex // guards the fields below; the logger is called without it
	open   bool       // the breaker is not closed
	forced bool       // by Force
	kind   outcome    // why the last decision was degraded
	cause  error      // nil if nothing is known
	failed time.Time  // when the primary last failed

	began     time.Time // the outage; zero if there is none
	last      time.Time // when something of it was last seen
	decisions uint64    // degraded in it
	openings  int       // of the breaker
	untold    bool      // it has opened, and no line says so
	lines     int       // written of it
	warned    bool      // the last of them was not of its end
	timer     *time.Timer
}

// Why decisions are degraded though the primary has not failed.
var (
	errBusy     = errors.New("Options.MaxCalls are under way, and no turn came in time")
	errDeadline = errors.New("the callers' own deadlines came first")
)

// failure takes note of a failure of the primary.
func (j *journal) failure(o outcome, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.kind, j.cause, j.failed = o, err, time.Now()
}

// degraded takes note of a degraded decision.
func (j *journal) degraded(o outcome) {
	j.mu.Lock()
	now := time.Now()
	if o == shut && !j.open { // the breaker has closed meanwhile: this is of the outage before
		if !j.began.IsZero() {
			j.decisions++
		}
		j.mu.Unlock()
		return
	}
	switch {
	case now.Sub(j.failed) < lineEvery: // which tells more
	case o == busy:
		j.kind, j.cause = o, errBusy
	case o == deadline:
		j.kind, j.cause = o, errDeadline
	}
	j.beginLocked(now)
	j.decisions++
	j.last = now
	write := j.warnLocked(now)
	j.mu.Unlock()
	write()
}

// beginLocked begins an outage, if there is none.
func (j *journal) beginLocked(now time.Time) {
	if j.began.IsZero() {
		j.began = now
		j.wakeLocked(lineEvery)
	}
}

// wakeLocked sees to it that the outage is looked at again.
func (j *journal) wakeLocked(after time.Duration) {
	if j.timer == nil {
		j.timer = time.AfterFunc(after, j.look)
	} else {
		j.timer.Reset(after)
	}
}

// look ends an outage that is over.
func (j *journal) look() {
	j.mu.Lock()
	write := nothing
	switch left := lineEvery - time.Since(j.last); {
	case j.open || j.began.IsZero(): // it is looked at again when the breaker has closed
	case left > 0:
		j.wakeLocked(left)
	default:
		if j.warned {
			write = j.endLocked(j.last, "failover: the primary limiter decides again")
		}
		j.began, j.decisions, j.openings, j.lines, j.cause = time.Time{}, 0, 0, 0, nil
	}
	j.mu.Unlock()
	write()
}

// nothing is written.
func nothing() {}

// warnLocked returns how to write a line of an outage that lasts, if it is time for one.
func (j *journal) warnLocked(now time.Time) (write func()) {
	if j.lines > int(now.Sub(j.began)/lineEvery) {
		return nothing
	}
	j.lines++
	j.warned = true
	text := "failover: deciding without the primary limiter"
	if j.untold {
		text = "failover: the breaker is open"
		j.untold = false
	}
	return j.lineLocked(slog.LevelWarn, now, text)
}

// endLocked returns how to write the line of an outage's end.
func (j *journal) endLocked(now time.Time, text string) (write func()) {
	j.lines++
	j.warned = false
	return j.lineLocked(slog.LevelInfo, now, text)
}

// lineLocked returns how to write a line of the outage as of now.
func (j *journal) lineLocked(level slog.Level, now time.Time, text string) (write func()) {
	args := []any{"decisions", j.decisions, "after", now.Sub(j.began).Round(time.Millisecond), "opened", j.openings}
	if j.forced {
		args = append(args, "forced", true)
	}
	if j.cause != nil {
		args = append(args, "failure", j.kind.String(), "error", j.cause)
	}
	return func() { j.write(level, text, args) }
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
	if c.from != StateClosed && c.to != StateClosed {
		return
	}
	now := time.Now()
	write := nothing
	j.mu.Lock()
	j.beginLocked(now)
	j.last = now
	j.open = c.to != StateClosed
	j.untold = j.open && !c.forced
	if j.open {
		j.openings++
	} else {
		j.wakeLocked(lineEvery)
	}
	switch {
	case c.forced: // its line is that of Force
		if j.open != j.warned {
			j.lines++
		}
		j.warned = j.open
	case j.open:
		write = j.warnLocked(now)
	case j.warned:
		write = j.endLocked(now, "failover: the breaker is closed")
	}
	j.mu.Unlock()
	write()
}

// force logs a call of Force.
func (j *journal) force(to State) {
	text := "failover: the breaker is forced " + to.String()
	if to == StateHalfOpen {
		text = "failover: the breaker is forced no more"
	}
	var args []any
	j.mu.Lock()
	j.forced = to != StateHalfOpen
	if !j.began.IsZero() {
		args = []any{"decisions", j.decisions}
	}
	j.mu.Unlock()
	j.write(slog.LevelWarn, text, args)
}

// write writes a line. A logger that panics costs the line, and no decision.
func (j *journal) write(level slog.Level, text string, args []any) {
	defer func() { _ = recover() }()
	j.log.Log(context.Background(), level, text, args...)
}
