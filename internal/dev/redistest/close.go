package redistest

import (
	"bytes"
	"io"
	"runtime"
	"testing"
	"time"
)

// Close closes a go-redis client after the round trips on all Rings have ended: go-redis 9.22 panics, in a goroutine
// of its own, if a Ring is closed during a pipeline. A round trip can outlive its callers, so Close reads the stacks of
// all goroutines.
func Close(t testing.TB, client io.Closer) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); onRing(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error("redistest: round trips of a Ring have not ended for 30 s")
			return // it stays open
		}
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

// onRing reports whether a goroutine sends calls by a Ring, or is about to.
func onRing() bool {
	stacks := make([]byte, 1<<20)
	n := runtime.Stack(stacks, true)
	for n == len(stacks) {
		stacks = make([]byte, 2*len(stacks))
		n = runtime.Stack(stacks, true)
	}
	for _, frame := range []string{"redis/v9.(*Ring).process", "redis/v9.(*Ring).generalProcessPipeline", "redislimit.(*lane).sendAll", "redislimit.(*store).aside.func"} {
		if bytes.Contains(stacks[:n], []byte(frame)) {
			return true
		}
	}
	return false
}
