// Package poll helps the sources of rules and the audit to check a value at intervals, and to report each change once.
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

// Signal sends on a channel with room for one, unless it is full.
func Signal(changes chan<- struct{}) {
	select {
	case changes <- struct{}{}:
	default:
	}
}
