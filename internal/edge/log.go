package edge

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// throttledLog writes at most one line a second, so that a flood of malformed requests does
// not flood the log. The zero throttledLog is ready to use. It is safe for concurrent use.
type throttledLog struct {
	next    atomic.Int64 // the time of the next line, in Unix nanoseconds
	dropped atomic.Uint64
}

// orDefault returns slog's default Logger for nil.
func orDefault(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.Default()
	}
	return l
}

// line writes a line, unless it is less than a second after the last one. A nil Logger is slog's default.
func (l *throttledLog) line(ctx context.Context, to *slog.Logger, now time.Time, level slog.Level, msg string, args ...any) {
	at, next := now.UnixNano(), l.next.Load()
	// Concurrent calls may come in another order than their readings. A reading
	// more than a second before the last line comes from a clock that was set back.
	early := at < next && next-at <= 2*int64(time.Second)
	if early || !l.next.CompareAndSwap(next, at+int64(time.Second)) {
		l.dropped.Add(1)
		return
	}
	orDefault(to).Log(ctx, level, msg, append(args, "unlogged", l.dropped.Swap(0))...)
}
