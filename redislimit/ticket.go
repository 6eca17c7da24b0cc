package redislimit

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// ticket is one run of a script, from its arguments to its answer. It owns its arguments: the
// caller may leave before they are read, so nothing in a ticket is used again for another one.
type ticket struct {
	script  *script
	keys    []string
	payload []byte
	test    []any                    // what a test adds
	room    [headSize + askSize]byte // of a payload about one key
	undone  bool                     // if the context ends the caller gives back what was charged

	// The answer. Whoever sends the ticket writes it before the caller is told.
	reply any
	err   error

	batch   *batch
	alone   batch // of a ticket that is sent by itself
	self    [1]*ticket
	command    *command
	members []*ticket // of a shared call
	tag     string    // of a shared call whose keys must share a slot: what chooses it

	waiting
}

// again returns a ticket that asks the same once more. Nothing was run of the first one.
func (t *ticket) again() *ticket {
	next := &ticket{script: t.script, keys: t.keys, payload: t.payload, test: t.test, undone: t.undone}
	next.ctx, next.deadline = t.ctx, t.deadline
	return next
}

// processor is what a ticket needs of a client.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// run runs the script in a round trip of its own; in two, if the server does not know it.
func (t *ticket) run(ctx context.Context, client processor) {
	t.process(ctx, client, t.bySHA(ctx))
	if t.unknown() {
		t.process(ctx, client, t.byText(ctx))
	}
}

func (t *ticket) process(ctx context.Context, client processor, cmd *command) {
	t.command = cmd
	t.err = client.Process(ctx, cmd)
	t.reply = cmd.Val()
}

func (t *ticket) bySHA(ctx context.Context) *command  { return t.newCall(ctx, evalsha, t.script.shaArg) }
func (t *ticket) byText(ctx context.Context) *command { return t.newCall(ctx, eval, t.script.textArg) }

var evalsha, eval any = "evalsha", "eval"

func (t *ticket) newCall(ctx context.Context, verb, script any) *command {
	cmd := &command{payload: packed{t.payload, t.batch}}
	declared := len(t.keys)
	if t.script.undeclared {
		declared = 0
	}
	args := append(cmd.words[:0], verb, script, declared)
	for i := range t.keys {
		args = append(args, t.keys[i])
	}
	args = append(append(args, &cmd.payload), t.test...)
	cmd.Cmd = *redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(3) // what chooses the node, declared or not
	return cmd
}

// unknown reports whether the server does not know the ticket's script.
func (t *ticket) unknown() bool {
	err := t.command.Err()
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// call is one command that go-redis must not send twice: an answer that is late may
// have been charged.
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
