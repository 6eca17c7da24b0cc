package redislimit

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// call is one script and its arguments, and what was answered. It owns its arguments: the
// caller may leave before they are read, so nothing in a call is used again for another one.
type call struct {
	script  *script
	keys    []string
	payload []byte
	test    []any                    // what a test adds
	room    [headSize + askSize]byte // of a payload about one key
	undone  bool                     // if the context ends the caller gives back what was charged
	members []*call                  // of a shared call: the decisions in it
	tag     string                   // of a shared call whose keys must share a slot: what chooses it

	ctx      context.Context // the caller's
	deadline time.Time       // the timeout's; zero if there is none
	command  *command        // by which it was sent last
	batch    *batch
	alone    batch // of a call that is sent by itself
	self     [1]*call

	// The answer. Whoever sends the call writes it before the caller is told.
	reply any
	err   error

	// Where the lane has the call. The lane's lock guards it, but wake stays as it is.
	wake       chan struct{} // has one element as soon as the call is answered, or late
	state      waitState
	sent       bool // of one that is late: it may have been sent
	prev, next *call
}

// again returns a call that asks the same once more. Nothing was run of the first one.
func (c *call) again() *call {
	return &call{script: c.script, keys: c.keys, payload: c.payload, test: c.test, undone: c.undone, ctx: c.ctx, deadline: c.deadline}
}

// processor is what a call needs of a client.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// run runs the script in a round trip of its own; in two, if the server does not know it.
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
	cmd.SetFirstKeyPos(3) // what chooses the node, declared or not
	return cmd
}

// unknown reports whether the server does not know the call's script.
func (c *call) unknown() bool {
	err := c.command.Err()
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// command is a call as go-redis sends it, which it must not do twice: a call whose answer is late may have been charged.
type command struct {
	redis.Cmd
	payload packed
	words   [5]any // of a call on one key
}

// NoRetry tells go-redis not to repeat the command.
func (cmd *command) NoRetry() bool { return true }

// packed is the last word of a call, and of a round trip. Every client asks for its bytes when
// it writes the call to a connection, and not before.
type packed struct {
	bytes []byte
	batch *batch
}

// MarshalBinary returns the bytes, unless the calls of the round trip have been taken back.
func (p *packed) MarshalBinary() ([]byte, error) {
	if !p.batch.write() {
		return nil, errTakenBack
	}
	return p.bytes, nil
}

// String is what a client's hook may print.
func (p *packed) String() string { return "(packed)" }

// errTakenBack ends the writing of a call that nobody waits for. The client closes the
// connection, on which a part of the call may be.
var errTakenBack = errors.New("redislimit: the call was taken back before it was sent")
