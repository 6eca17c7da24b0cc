package httplimit

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// throttledLog writes at most one line a second, so that a flood of malformed
// requests is not one of log lines too.
type throttledLog struct {
	next    atomic.Int64 // Unix nanoseconds: no line before
	dropped atomic.Uint64
}

// line writes a line, unless it is less than a second after the last one.
func (l *throttledLog) line(o *Options, ctx context.Context, level slog.Level, msg string, args ...any) {
	at, next := o.Now().UnixNano(), l.next.Load()
	early := at < next && next-at <= int64(time.Second) // else the clock was set back
	if early || !l.next.CompareAndSwap(next, at+int64(time.Second)) {
		l.dropped.Add(1)
		return
	}
	to := o.Logger
	if to == nil {
		to = slog.Default()
	}
	to.Log(ctx, level, msg, append(args, "unlogged", l.dropped.Swap(0))...)
}
