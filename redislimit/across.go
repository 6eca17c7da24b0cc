package redislimit

import (
	"fmt"
	"strings"
	"time"
)

// In a cluster, a call whose keys are declared is on one slot. To Redis a script may also use keys that are not
// declared, of all the slots that its server serves: the server checks each command of the script. So
// decisions on keys of several slots share one call, whose keys are plain words.
//
// Redis advises against undeclared keys, because a script can then begin on one server and find a part of
// its keys on another one. Here that does no harm:
//
//   - Each decision of the call is on one key, reads it first, and writes it once, last. If a command is refused, that
//     decision has charged nothing, and is sent again by itself, with its key declared. The others stand.
//   - Declared keys could be answered by ASK. The client would send the call to a server that is importing
//     the slot of the first key, as one that may use all slots that are being imported: it would find no state of keys that
//     have not moved yet, and grant their budgets again. A call without declared keys is never redirected.
//   - A server that does not check what a script uses would keep budgets that belong to another one. So each server is
//     asked at first whether it refuses a key that another one serves. Until it has said so, keys are declared.

// guarded asks whether a server refuses to a script what it does not serve.
var guarded = acrossSlots(blocks{luaFiles}.lua("guarded"))

// askEvery is how often a server is asked that has not said yes.
const askEvery = 10 * time.Second

// ask returns the call that asks the server, nil if there is no need to. It is sent with the batch.
func (l *lane) ask(b *batch, calls int) *call {
	if calls < 2 || l.elsewhere == nil || sharing(l.share.Load()) == shareNode {
		return nil
	}
	at, now := l.askAt.Load(), time.Now()
	if now.UnixNano() < at || !l.askAt.CompareAndSwap(at, now.Add(askEvery).UnixNano()) {
		return nil
	}
	own := b.calls[0].keys[0]
	other := l.elsewhere(own)
	if other == "" {
		return nil
	}
	return &call{batch: b, script: guarded, keys: []string{own, other}}
}

// learn takes note of what the server has said.
func (l *lane) learn(asked *call) {
	if said, ok := asked.reply.(int64); ok && said == 1 {
		l.share.Store(uint32(shareNode))
	}
}

// elsewhere returns a key of the limiter of a key that is served by another server than that of an address.
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
