package edge

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// throttledLog writes at most one line a second, so that malformed requests cannot
// flood the log. The zero throttledLog is ready to use. It is safe for concurrent use.
type throttledLog struct {
	next    atomic.Int64 // the earliest time of the next line, in Unix nanoseconds
	dropped atomic.Uint64
}

// orDefault returns l, or slog's default Logger if l is nil.
func orDefault(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.Default()
	}
	return l
}

// line writes a line, unless the last line is less than a second old. A nil Logger stands for slog's default.
func (l *throttledLog) line(ctx context.Context, to *slog.Logger, now time.Time, level slog.Level, msg string, args ...any) {
	at, next := now.UnixNano(), l.next.Load()
	// Concurrent calls may run in another order than they read the clock. A reading
	// more than a second before the last line shows that the clock was set back.
	early := at < next && next-at <= 2*int64(time.Second)
	if early || !l.next.CompareAndSwap(next, at+int64(time.Second)) {
		l.dropped.Add(1)
		return
	}
	orDefault(to).Log(ctx, level, msg, append(args, "unlogged", l.dropped.Swap(0))...)
}
