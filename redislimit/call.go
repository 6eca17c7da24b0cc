package redislimit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// call is one script, its arguments, and the reply. It owns its arguments: the caller may leave before they are read, so no
// part of a call is used again for another one.
type call struct {
	script  *script
	keys    []string
	payload []byte
	test    []any                       // further arguments of a test
	room    [headSize + chargeSize]byte // holds a payload about one key
	undone  bool                        // if the context ends, the caller gives the charge back
	goesOn  bool                        // if the context ends after the call was sent, another caller takes the answer
	members []*call                     // in a shared call: the decisions in it
	tag     string                      // all keys' hash tag, in a shared call whose keys must share a slot

	ctx      context.Context // the caller's context
	deadline time.Time       // the deadline of the timeout; zero if there is none
	command  *command        // the command of the last attempt
	batch    *batch
	alone    batch // for a call sent by itself
	self     [1]*call

	// The reply. The goroutine that sends the call writes it before it wakes the caller.
	reply any
	err   error

	// The call's place in the lane. The lane's lock guards it, except wake, which does not change.
	wake       chan struct{} // receives one element when the call is answered or late
	state      waitState
	sent       bool // if it is late: it may have been sent
	left       bool // its caller has left, and it goes on
	prev, next *call
}

// waitState is the progress of a call whose caller waits.
type waitState byte

const (
	isOut     waitState = iota // it is in no lane: it was never put there, or its caller has left
	isQueued                   // it has not been sent
	isInBatch                  // it is in a batch
	isAnswered
	isLate // its deadline has passed
)

// again returns a copy of the call, to be sent. No part of the first one has run.
func (c *call) again() *call {
	return &call{script: c.script, keys: c.keys, payload: c.payload, test: c.test, undone: c.undone, goesOn: c.goesOn, ctx: c.ctx, deadline: c.deadline}
}

// hurry ends a call's context at its deadline. A repeated call needs this, because its lane expects deadlines
// in the order of arrival, and it stands behind calls with later ones. The call no longer outlives its caller.
func (c *call) hurry() (stop func()) {
	c.goesOn = false
	c.ctx, stop = c.bounded()
	return stop
}

// processor has a client's methods for a call.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// run sends the call by itself, and once more with the script's text if the server does not know the script.
func (c *call) run(ctx context.Context, client processor) {
	c.process(ctx, client, c.bySHA(ctx))
	if c.unknown() {
		c.process(ctx, client, c.byText(ctx))
	}
}

func (c *call) process(ctx context.Context, client processor, cmd *command) {
	c.command = cmd
	c.err = client.Process(ctx, cmd)
	c.reply = cmd.Val()
}

func (c *call) bySHA(ctx context.Context) *command {
	return c.newCommand(ctx, evalsha, c.script.shaArg)
}
func (c *call) byText(ctx context.Context) *command { return c.newCommand(ctx, eval, c.script.textArg) }

var evalsha, eval any = "evalsha", "eval"

func (c *call) newCommand(ctx context.Context, verb, script any) *command {
	cmd := &command{payload: packed{c.payload, c.batch}}
	declared := len(c.keys)
	if c.script.undeclared {
		declared = 0
	}
	args := append(cmd.words[:0], verb, script, declared)
	for i := range c.keys {
		args = append(args, c.keys[i])
	}
	args = append(append(args, &cmd.payload), c.test...)
	cmd.Cmd = *redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(3) // this key determines the node, whether it is declared or not
	return cmd
}

// unknown reports whether the server does not know the call's script.
func (c *call) unknown() bool {
	err := c.command.Err()
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// command is a call in the form for go-redis. go-redis must not repeat it: a call whose answer is late may have been charged.
type command struct {
	redis.Cmd
	payload packed
	words   [5]any // a call's words on one key
}

// NoRetry keeps go-redis from repeating the command.
func (cmd *command) NoRetry() bool { return true }

// packed is the payload as an argument of a command. A client
// requests its bytes only when it writes the command to a connection.
type packed struct {
	bytes []byte
	batch *batch
}

// MarshalBinary returns the bytes, unless the batch has been taken back.
func (p *packed) MarshalBinary() ([]byte, error) {
	if !p.batch.write() {
		return nil, errTakenBack
	}
	return p.bytes, nil
}

// String returns a text for a client's hooks.
func (p *packed) String() string { return "(packed)" }

// errTakenBack ends the writing of a call without a waiting caller. The
// client then closes the connection, because a part of the call may be on it.
var errTakenBack = errors.New("redislimit: the call was taken back before it was sent")

// batch is a set of calls to a server in one round trip. It is either written or taken back,
// whichever comes first. So a leaving caller knows whether the server may have received the call.
type batch struct {
	calls   []*call
	staying int  // calls whose callers still wait; the lane's lock guards it
	stuck   bool // no caller waits, and the lane no longer counts it; the lane's lock guards it
	state   atomic.Uint32
}

const (
	batchPending uint32 = iota
	batchWritten
	batchTakenBack
)

// write reports whether the calls may be written, and records that they are.
func (b *batch) write() bool {
	return b.state.CompareAndSwap(batchPending, batchWritten) || b.written()
}

// written reports whether calls may have reached the server.
func (b *batch) written() bool { return b.state.Load() == batchWritten }

// mayArrive reports whether the server may receive the calls, or may have received them. While a caller
// waits for the calls, it reports true. Without a waiting caller it takes the calls back, unless they
// have been written. The caller holds the lane's lock. A call without a batch has not been sent.
func (b *batch) mayArrive() bool { return b != nil && (b.staying > 0 || !b.takeBack()) }

// takeBack reports whether the calls have not been written, and never will be.
func (b *batch) takeBack() bool {
	return b.state.CompareAndSwap(batchPending, batchTakenBack) || b.state.Load() == batchTakenBack
}

// end returns when a call's answer becomes useless: its timeout's end, or its caller's own deadline. Zero means never.
func (c *call) end() time.Time {
	own, ok := c.ctx.Deadline()
	if ok && !c.outlives() && (c.deadline.IsZero() || own.Before(c.deadline)) {
		return own
	}
	return c.deadline
}

// bounded returns the caller's context with the timeout, and its cancel function.
func (c *call) bounded() (context.Context, func()) {
	switch {
	case c.deadline.IsZero():
		return c.ctx, func() {}
	case c.outlives():
		return withDeadline(context.WithoutCancel(c.ctx), c.deadline)
	}
	return withDeadline(c.ctx, c.deadline)
}

// outlives reports whether the call goes on after its context has ended. A call without a timeout could go on for ever.
func (c *call) outlives() bool { return c.goesOn && !c.deadline.IsZero() }

// deadline is a context with a deadline, whose parent never ends.
// It is equivalent to context.WithDeadline, with fewer allocations.
type deadline struct {
	context.Context
	at time.Time

	mu    sync.Mutex // guards the fields below
	done  chan struct{}
	timer *time.Timer
}

func withDeadline(parent context.Context, at time.Time) (context.Context, func()) {
	if parent.Done() != nil {
		return context.WithDeadline(parent, at)
	}
	d := &deadline{Context: parent, at: at}
	return d, d.stop
}

func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

// Done returns a channel that is closed at the deadline. The timer starts at the first call.
func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done == nil {
		d.done = make(chan struct{})
		d.timer = time.AfterFunc(time.Until(d.at), func() { close(d.done) })
	}
	return d.done
}

// Err is never nil once Done is closed: the timer fires at the deadline, not before.
func (d *deadline) Err() error {
	if time.Now().Before(d.at) {
		return nil
	}
	return context.DeadlineExceeded
}

// stop ends the timer. Nobody reads Done afterwards.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
}

// runInline runs a call on the caller's goroutine, for as long as the client takes.
func (c *call) runInline(client processor) (reply any, err error, sent bool) {
	c.batch = &c.alone
	ctx, stop := c.bounded()
	defer stop()
	c.run(ctx, client)
	return c.reply, c.err, c.batch.written()
}

// answeredSoon waits for an answer after a call's context has
// ended, if the call has to be undone. Otherwise it does not wait.
func (c *call) answeredSoon(answered <-chan struct{}) bool {
	if !c.undone {
		select {
		case <-answered:
			return true
		default:
			return false
		}
	}
	left := lingering
	if !c.deadline.IsZero() {
		left = min(left, time.Until(c.deadline))
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-answered:
		return true
	case <-timer.C:
		return false
	}
}

// unfinished is the error of a caller whose call goes on after the caller has left.
type unfinished struct {
	error
	call *call
}

func (e *unfinished) Unwrap() error { return e.error }

// lingering is how long a Wait waits for the answer to its booking after its context has ended, to give the booking back.
const lingering = 50 * time.Millisecond
