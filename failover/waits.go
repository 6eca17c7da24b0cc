package failover

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/wait"
)

// waits are the calls to Wait that are sleeping, each in the primary's line or the stand-in's.
// When the breaker changes, calls in the line of the limiter that no longer decides start again.
type waits struct {
	wait.Calls
	standing func() standing // the breaker's
	stay     time.Duration   // for which a call stays at the stand-in while the breaker is closed

	mu    sync.Mutex  // guards the fields below
	last  *peek       // the call to Peek under way, or nil
	timer *time.Timer // for a check after stay, or nil
}

// side is the limiter in whose line a call waits.
type side uint8

const (
	nowhere side = iota // the call is over, or between the lines
	atPrimary
	atStandIn
)

// waitingCall is a call to Wait.
type waitingCall struct {
	wait.Call
	among *waits

	mu   sync.Mutex // guards the fields below
	side side
	era  uint64    // the breaker's when the call entered the line
	came time.Time // when it entered the line
}

// newCall returns a call to Wait. When the call ends, its caller must call Over.
func (ws *waits) newCall(ctx context.Context) *waitingCall {
	w := &waitingCall{among: ws}
	w.Init(&ws.Calls, w.check)
	w.Context = ctx
	return w
}

// enters records whose line the call's next attempt is in, and returns the breaker's era.
func (w *waitingCall) enters(s side) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.side, w.era, w.came = s, w.among.standing().era, time.Now()
	return w.era
}

// left records that the attempt has ended. So no check waits for the next one of a call that is over.
func (w *waitingCall) left() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.side = nowhere
}

// check ends the attempt under way if the other limiter decides now. A call may have moved to the stand-in
// because one call to the primary failed, while the breaker was closed. It goes back once stay has passed.
func (w *waitingCall) check() (anew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.among.standing()
	switch closed := now.state == StateClosed; {
	case w.side == atPrimary:
		anew = !closed
	case w.side == atStandIn && closed:
		if anew = now.era != w.era || time.Since(w.came) >= w.among.stay; !anew {
			w.among.checkAgain()
		}
	}
	if anew {
		w.Anew()
	}
	return anew
}

// checkAgain makes a check run after stay.
func (ws *waits) checkAgain() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.timer == nil {
		ws.timer = time.AfterFunc(ws.stay, func() {
			ws.mu.Lock()
			ws.timer = nil
			ws.mu.Unlock()
			ws.Check()
		})
	}
}

// changed has the waiting calls follow the breaker.
func (ws *waits) changed() {
	if ws.Len() > 0 {
		go ws.Check() // it waits until each call has found its place
	}
}

// peek is a call to the primary's Peek. Its result shows all calls to Wait whether the primary answers.
type peek struct {
	done   chan struct{}
	ending ending // once done is closed
}

// peek makes a call unless one is under way, and returns it.
func (ws *waits) peek(call func() ending) *peek {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.last != nil {
		return ws.last
	}
	p := &peek{done: make(chan struct{})}
	ws.last = p
	go func() {
		p.ending = call()
		ws.mu.Lock()
		ws.last = nil
		ws.mu.Unlock()
		close(p.done)
	}()
	return p
}
