package redislimit

import (
	"fmt"
	"strings"
	"time"
)

// In a cluster, all declared keys of a call must be in one slot. Redis also permits a script to
// use undeclared keys, in all slots of its server: the server checks each command of the script.
// So decisions on keys of several slots share one call, and pass their keys as plain arguments.
//
// Redis advises against undeclared keys, because a script may begin on one
// server and find some of its keys on another. Here this does no harm:
//
//   - Each decision of the call is on one key, reads it first, and writes it once, last. If a command is refused,
//     its decision has charged nothing, and is sent again by itself, with its key declared. The others stand.
//   - A server could answer declared keys by the redirection ASK. Then the client would send the call to the server
//     importing the first key's slot, and the call could use all slots imported there. It would find no state of
//     keys still on the old server, and grant their budgets again. A call without declared keys is never redirected.
//   - If a server did not check a script's keys, it would keep another server's budgets. So each server first
//     gets a call on another server's key, and must refuse it. Until it has refused the call, keys are declared.

// guarded is the script by which a server shows whether it refuses other servers' keys.
var guarded = acrossSlots(blocks{luaFiles}.lua("guarded"))

// checkEvery is the interval between a server's checks until it passes one.
const checkEvery = 10 * time.Second

// guard returns the call to check the server with, or nil if no check is due. The batch sends it.
func (l *lane) guard(b *batch, calls int) *call {
	if calls < 2 || l.elsewhere == nil || sharing(l.share.Load()) == shareNode {
		return nil
	}
	at, now := l.checkAt.Load(), time.Now()
	if now.UnixNano() < at || !l.checkAt.CompareAndSwap(at, now.Add(checkEvery).UnixNano()) {
		return nil
	}
	own := b.calls[0].keys[0]
	other := l.elsewhere(own)
	if other == "" {
		return nil
	}
	return &call{batch: b, script: guarded, keys: []string{own, other}}
}

// learn records the server's answer.
func (l *lane) learn(answered *call) {
	if passed, ok := answered.reply.(int64); ok && passed == 1 {
		l.share.Store(uint32(shareNode))
	}
}

// elsewhere returns a key of the same limiter on another server than the one at addr.
func (n *nodes) elsewhere(key, addr string) string {
	begin, _, _ := strings.Cut(key, "{")
	for i := range 1000 {
		other := fmt.Sprintf("%s{%d}", begin, i)
		if node, err := n.find(other); err == nil && node.Options().Addr != addr {
			return other
		}
	}
	return ""
}
