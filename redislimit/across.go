package redislimit

import (
	"fmt"
	"strings"
	"time"
)

// In a cluster, all declared keys of a call must be in one slot. Redis also permits a script to use undeclared keys, in
// all slots that its server serves: the server checks each command of the script. So decisions on keys of several slots
// share one call, and pass their keys as plain arguments.
//
// Redis advises against undeclared keys, because a script may begin on one server and find some of its keys on another.
// Here that does no harm:
//
//   - Each decision of the call is on one key, reads it first, and writes it once, last. If a command is refused, that
//     decision has charged nothing, and is sent again by itself, with its key declared. The others stand.
//   - A server could answer declared keys by the redirection ASK. Then the client would send the call to the server
//     that imports the slot of the first key, and the call could use all slots that this server imports. It would find
//     no state of keys that have not moved yet, and grant their budgets again. A call without declared keys is never
//     redirected.
//   - A server that does not check a script's keys would keep budgets that belong to another server. So each server
//     first gets a call that it must refuse, on a key that another server serves. Until it has refused the call, keys
//     are declared.

// guarded is the script that checks whether a server refuses keys that it does not serve.
var guarded = acrossSlots(blocks{luaFiles}.lua("guarded"))

// checkEvery is the interval between the checks of a server that has not passed one.
const checkEvery = 10 * time.Second

// guard returns the call that checks the server, or nil if no check is due. It is sent with the batch.
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

// elsewhere returns a key of the same limiter that a server other than the one at addr serves.
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
