// Package poll checks a value at intervals, for the rules' sources and for the audit, and reports each change once.
package poll

import (
	"context"
	"time"
)

// Every calls look at intervals until the context ends.
func Every(ctx context.Context, every time.Duration, look func()) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			look()
		}
	}
}

// Signal sends on a channel with a buffer for one element, unless the buffer is full.
func Signal(changes chan<- struct{}) {
	select {
	case changes <- struct{}{}:
	default:
	}
}
