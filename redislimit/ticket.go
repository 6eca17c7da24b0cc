package redislimit

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// ticket is one run of a script, from its arguments to its answer.
type ticket struct {
	script  *script
	keys    []string
	payload []byte
	test    []any // what a test adds

	// The answer. Whoever sends the ticket writes it, before wake.
	reply any
	err   error
	sent  bool // it may have reached the server

	// Of a ticket that waits for others, guarded by the combiner's lock until it is woken.
	deadline time.Time     // zero if there is none
	wake     chan struct{} // has one element as soon as the ticket is answered, leads, or is late
	turn     turn          // for whom wake is
	tooLate  bool          // of one that is late: it may have been sent
	batch    *batch        // that it is a part of, nil while it is in the queue
	call     *call
	members  []*ticket // of a crowd, which share the call
}

func (t *ticket) bySHA(ctx context.Context) *call  { return t.newCall(ctx, evalsha, t.script.shaArg) }
func (t *ticket) byText(ctx context.Context) *call { return t.newCall(ctx, eval, t.script.textArg) }

var evalsha, eval any = "evalsha", "eval"

func (t *ticket) newCall(ctx context.Context, verb, script any) *call {
	c := &call{payload: t.payload}
	args := append(c.words[:0], verb, script, len(t.keys))
	for i := range t.keys {
		args = append(args, t.keys[i])
	}
	args = append(append(args, &c.payload), t.test...)
	c.Cmd = *redis.NewCmd(ctx, args...)
	return c
}

// unknown reports whether the server does not know the ticket's script.
func (t *ticket) unknown() bool {
	err := t.call.Err()
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}
