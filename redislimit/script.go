package redislimit

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed lua
var luaFiles embed.FS

// lua returns blocks of the scripts, one after the other. Each knows those before it.
func lua(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		text, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // a block that is not embedded: no test would pass
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.String()
}

// script is a text that Redis knows by its hash once it has run it.
type script struct {
	text, sha       string
	crowd           *script // does for several decisions what this one does for one; nil if none does
	textArg, shaArg any     // the same, as arguments of a command
}

// newScript makes a script. The first line makes Redis refuse it whole if memory is
// short, rather than in the middle.
func newScript(flags string, blocks ...string) *script {
	text := "#!lua" + flags + "\n" + strings.Join(blocks, "\n")
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &script{text: text, sha: sha, textArg: text, shaArg: sha}
}

// noWrites lets a script run where none that may write does, and allowOOM where memory is short.
const (
	noWrites = " flags=no-writes"
	allowOOM = " flags=allow-oom"
)

var (
	library  = lua("arith", "bucket", "window", "counter", "log", "state", "book", "carry", "load")
	deciding = library + lua("decide")

	settleScript = newScript("", lua("clock"), library, lua("settle"))
	resetScript  = newScript(allowOOM, lua("reset"))
	decideMany   = newDecider(quickMany)
	decideOne    = map[byte]*decider{
		kindToken:   newDeciderOne(kindToken),
		kindLeaky:   newDeciderOne(kindLeaky),
		kindFixed:   newDeciderOne(kindFixed),
		kindLog:     newDeciderOne(kindLog),
		kindCounter: newDeciderOne(kindCounter),
	}
)

// general returns the general case, as a function within the script: a script's own variables
// take time for each of them, whether it comes to use them or not.
func general(last string) string {
	return "return (function()\n" + deciding + lua(last) + "end)()\n"
}

// decider is a script that decides: to spend now, to book ahead else, and to look.
type decider struct{ take, keep, peek *script }

// newDecider puts the usual case, which returns, before the general one, whose
// definitions alone take Redis longer than a usual decision.
func newDecider(quick func(op byte) string) *decider {
	one := func(flags string, op byte) *script {
		return newScript(flags, lua("clock"), quick(op), general("run"))
	}
	return &decider{one("", opTake), one("", opKeep), one(noWrites, opPeek)}
}

// newDeciderOne returns how to decide on one key, alone and with others.
func newDeciderOne(kind byte) *decider {
	d, u := newDecider(quickOne(kind)), usuals[kind]
	may := ""
	if kind == kindLog {
		may = quick("may")
	}
	text := may + fill(quick("crowd"), "JUDGE", u.judge, "SPEND", u.spend, "STORE", quick("store"))
	d.take.crowd = newScript("", lua("clock"), text, general("crowd"))
	return d
}

// usual is how the usual case of a kind is decided, in blocks: how a cost is judged, and how it
// is spent and written.
type usual struct{ judge, spend string }

var usuals = map[byte]usual{
	kindToken:   {quick("bucket"), quick("spend_bucket", "write")},
	kindLeaky:   {quick("bucket", "leaky"), quick("spend_bucket", "write")},
	kindFixed:   {quick("load", "read", "fixed"), quick("spend_fixed", "write")},
	kindLog:     {quick("load_log", "read", "log"), quick("spend_log")},
	kindCounter: {quick("load", "read", "counter"), quick("spend_counter", "write")},
}

// quickOne returns the usual case for one key.
func quickOne(kind byte) func(op byte) string {
	u := usuals[kind]
	return func(op byte) string {
		denied := quick("denied")
		switch {
		case op == opPeek:
			return fill(quick("one"), "JUDGE", u.judge, "DENIED", denied, "SPEND", "", "STORE", "")
		case op == opKeep && kind != kindLeaky && kind != kindLog:
			denied = quick("unusual")
		}
		return fill(quick("one"), "JUDGE", u.judge, "DENIED", denied, "SPEND", u.spend, "STORE", quick("store"))
	}
}

// quickMany returns the usual case for several keys, of which none books ahead but leaky
// buckets.
func quickMany(op byte) string {
	text := quick("many")
	for place, kind := range map[string]byte{"TOKEN": kindToken, "LEAKY": kindLeaky, "FIXED": kindFixed, "LOG": kindLog, "COUNTER": kindCounter} {
		u := usuals[kind]
		if op == opPeek {
			u.spend = ""
		}
		text = fill(text, place, u.judge+fill(quick("take"), "SPEND", u.spend))
	}
	return fill(text, "STORE", quick("store"))
}

// quick returns blocks of the usual case.
func quick(names ...string) (text string) {
	for _, name := range names {
		text += lua("quick/" + name)
	}
	return text
}

// fill puts texts into the places that a text has for them.
func fill(text string, places ...string) string {
	for i := 0; i < len(places); i += 2 {
		text = strings.Replace(text, "--"+places[i]+"\n", places[i+1], 1)
	}
	return text
}

// scriptFor returns the script for a decision.
func (s *session) scriptFor(op byte) *script {
	d := decideMany
	if len(s.charges) == 1 && !s.charges[0].shadow {
		d = decideOne[s.charges[0].plan.kind]
		if s.charges[0].cost == 0 {
			return d.peek
		}
	}
	switch {
	case op == opPeek:
		return d.peek
	case op == opKeep && s.charges[0].ahead > 0:
		return d.keep
	}
	return d.take
}
