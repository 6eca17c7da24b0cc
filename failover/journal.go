package failover

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/failures"
)

// lineEvery is the interval between an outage's log lines. If an
// outage comes back within lineEvery, it counts as the same one.
const lineEvery = time.Minute

// journal logs outages. Each line contains the last error.
//
// An outage begins when a decision is degraded or the breaker opens. It has ended when, for lineEvery, the
// breaker has been closed and no decision was degraded. A line reports its beginning, and another one follows
// in each minute with degraded decisions. The first line after the breaker has opened reports the opening. The
// last line comes when the breaker closes. If the breaker did not open, it comes when the outage has ended.
//
// Invariant: at time d, an outage has at most 2 + d/lineEvery lines. Each line but an end leaves room for the end's line,
// so no outage stays open in the log. So if an outage comes back soon, it may be logged again only after two minutes.
type journal struct {
	log           *slog.Logger
	onStateChange func(from, to State) // the user's; may be nil

	mu     sync.Mutex // guards the fields below; not held while the logger is called
	open   bool       // whether the breaker is not closed
	forced bool       // whether Force has changed the state
	kind   ending     // why the last decision was degraded
	cause  error      // the error; nil if not known
	failed time.Time  // the time of the primary's last failure

	phase     outage
	began     time.Time // the outage's beginning, if there is one
	last      time.Time // the last degraded decision or change of the breaker
	decisions uint64    // degraded decisions
	openings  int       // openings of the breaker
	opened    bool      // whether the breaker has opened since the last line
	lines     int       // lines about the outage
	timer     *time.Timer
}

// outage is an outage's state in the log.
type outage uint8

const (
	none   outage = iota // no outage
	silent               // an outage with no line yet, or whose last line has reported the end
	warned               // an outage reported as lasting by its last line
)

// line is a log line. It is written after the lock is released. The zero line is not written.
type line struct {
	level slog.Level
	text  string
	args  []any
}

// Why a decision is degraded although the primary has not failed.
var (
	errBusy     = errors.New("Options.MaxCalls are under way, and no turn came in time")
	errDeadline = errors.New("the callers' own deadlines came first")
)

// failure records a failure of the primary.
func (j *journal) failure(o ending, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.kind, j.cause, j.failed = o, err, time.Now()
}

// degraded records a degraded decision.
func (j *journal) degraded(o ending) {
	j.mu.Lock()
	now := time.Now()
	if o == shut && !j.open { // the breaker has closed since, so this decision belongs to the previous outage
		if j.phase != none {
			j.decisions++
		}
		j.mu.Unlock()
		return
	}
	switch {
	case now.Sub(j.failed) < lineEvery: // a recent failure is the more useful reason
	case o == busy:
		j.kind, j.cause = o, errBusy
	case o == deadline:
		j.kind, j.cause = o, errDeadline
	}
	j.beginLocked(now)
	j.decisions++
	j.last = now
	l := j.warnLocked(now)
	j.mu.Unlock()
	j.write(l)
}

// beginLocked begins an outage, if there is none.
func (j *journal) beginLocked(now time.Time) {
	if j.phase == none {
		j.phase, j.began = silent, now
		j.wakeLocked(lineEvery)
	}
}

// wakeLocked schedules the next call of look.
func (j *journal) wakeLocked(after time.Duration) {
	if j.timer == nil {
		j.timer = time.AfterFunc(after, j.look)
	} else {
		j.timer.Reset(after)
	}
}

// look ends the outage if it is over.
func (j *journal) look() {
	j.mu.Lock()
	var l line
	switch left := lineEvery - time.Since(j.last); {
	case j.open || j.phase == none: // look is called again when the breaker has closed
	case left > 0:
		j.wakeLocked(left)
	default:
		if j.phase == warned {
			l = j.endLocked(j.last, "failover: the primary limiter decides again")
		}
		j.phase, j.decisions, j.openings, j.lines, j.cause = none, 0, 0, 0, nil
	}
	j.mu.Unlock()
	j.write(l)
}

// warnLocked returns the line for a lasting outage, if a line is due.
func (j *journal) warnLocked(now time.Time) line {
	if j.lines > int(now.Sub(j.began)/lineEvery) {
		return line{}
	}
	j.lines++
	j.phase = warned
	text := "failover: deciding without the primary limiter"
	if j.opened {
		text = "failover: the breaker is open"
		j.opened = false
	}
	return j.lineLocked(slog.LevelWarn, now, text)
}

// endLocked returns the line for an outage's end.
func (j *journal) endLocked(now time.Time, text string) line {
	j.lines++
	j.phase = silent
	return j.lineLocked(slog.LevelInfo, now, text)
}

// lineLocked returns the outage's log line so far.
func (j *journal) lineLocked(level slog.Level, now time.Time, text string) line {
	args := []any{"decisions", j.decisions, "after", now.Sub(j.began).Round(time.Millisecond), "opened", j.openings}
	if j.forced {
		args = append(args, "forced", true)
	}
	if j.cause != nil {
		args = append(args, "failure", j.kind.String(), "error", j.cause)
	}
	return line{level, text, args}
}

// changed logs a change of state, and passes it to the user's function. A panic of
// the logger or the function does not stop the breaker: changed recovers and logs it.
func (j *journal) changed(c change) {
	j.logChange(c)
	if j.onStateChange == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			j.write(line{slog.LevelError, "failover: OnStateChange panicked", []any{"panic", failures.PanicText(p)}})
		}
	}()
	j.onStateChange(c.from, c.to)
}

func (j *journal) logChange(c change) {
	if c.from != StateClosed && c.to != StateClosed {
		return
	}
	now := time.Now()
	var l line
	j.mu.Lock()
	j.beginLocked(now)
	j.last = now
	j.open = c.to != StateClosed
	j.opened = j.open && !c.forced
	if j.open {
		j.openings++
	} else {
		j.wakeLocked(lineEvery)
	}
	switch {
	case c.forced: // Force logs its own line
		phase := silent
		if j.open {
			phase = warned
		}
		if j.phase != phase {
			j.lines++
		}
		j.phase = phase
	case j.open:
		l = j.warnLocked(now)
	case j.phase == warned:
		l = j.endLocked(now, "failover: the breaker is closed")
	}
	j.mu.Unlock()
	j.write(l)
}

// force logs a call to Force.
func (j *journal) force(to State) {
	text := "failover: the breaker is forced " + to.String()
	if to == StateHalfOpen {
		text = "failover: the breaker is forced no more"
	}
	var args []any
	j.mu.Lock()
	j.forced = to != StateHalfOpen
	if j.phase != none {
		args = []any{"decisions", j.decisions}
	}
	j.mu.Unlock()
	j.write(line{slog.LevelWarn, text, args})
}

// write writes a line, unless it is the zero line. If the logger panics, the line is lost, but the decision is not.
func (j *journal) write(l line) {
	if l.text == "" {
		return
	}
	defer func() { _ = recover() }()
	j.log.Log(context.Background(), l.level, l.text, l.args...)
}
