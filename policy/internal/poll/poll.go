// Package poll is shared by the sources of rules and the audit, which are packages of their own: it looks at a value now and
// then, and reports a change once.
package poll

import (
	"context"
	"time"
)

// Every calls look now and then until the context ends.
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
