package failover

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// journal logs that decisions are degraded, at most once a minute.
type journal struct {
	log   *slog.Logger
	next  atomic.Int64  // Unix nanoseconds: no line before
	since atomic.Uint64 // degraded decisions since the last line
}

// degraded takes note of a degraded decision. The cause is nil while the breaker is open.
func (j *journal) degraded(o outcome, cause error) {
	j.since.Add(1)
	now, next := time.Now().UnixNano(), j.next.Load()
	if now < next && next-now <= int64(time.Minute) || !j.next.CompareAndSwap(next, now+int64(time.Minute)) {
		return
	}
	args := []any{"decisions", j.since.Swap(0)}
	if o.instead() {
		args = append(args, "failure", o.String())
	}
	if cause != nil {
		args = append(args, "cause", cause)
	}
	j.log.Warn("failover: deciding without the primary limiter", args...)
}

// changed logs a change of state.
func (j *journal) changed(c change) {
	level := slog.LevelInfo
	if c.to == StateOpen {
		level = slog.LevelWarn
	}
	j.log.Log(noContext, level, "failover: the breaker is "+c.to.String(), "from", c.from.String(), "to", c.to.String())
}
