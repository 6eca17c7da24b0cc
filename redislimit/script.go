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
	textArg, shaArg any // the same, as arguments of a command
}

// newScript makes a script. The first line makes Redis refuse it whole if memory is
// short, rather than in the middle.
func newScript(flags string, blocks ...string) *script {
	text := "#!lua" + flags + "\n" + strings.Join(blocks, "\n")
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &script{text, sha, text, sha}
}

// noWrites lets a script run where none that may write does.
const noWrites = " flags=no-writes"

var (
	library  = lua("arith", "bucket", "window", "counter", "log", "state", "book", "carry", "load")
	deciding = library + lua("decide")

	settleScript = newScript("", lua("clock"), library, lua("settle"))
	decideMany   = newDecider(quickMany)
	decideOne    = map[byte]*decider{
		kindToken:   newDecider(quickOne("bucket", "spend_bucket", "write")),
		kindLeaky:   newDecider(quickOne("bucket leaky", "spend_bucket", "write")),
		kindFixed:   newDecider(quickOne("fixed", "spend_fixed", "write")),
		kindLog:     newDecider(quickOne("log", "spend_log", "")),
		kindCounter: newDecider(quickOne("counter", "spend_counter", "write")),
	}
)

// decider is a script that decides: to spend now, to spend now or later, and to look.
type decider struct{ take, keep, peek *script }

// newDecider puts the usual case, which returns, before the general one, whose
// definitions alone take Redis longer than a usual decision.
func newDecider(quick func(op byte) string) *decider {
	one := func(flags string, op byte) *script { return newScript(flags, lua("clock"), quick(op), deciding) }
	return &decider{one("", opTake), one("", opKeep), one(noWrites, opPeek)}
}

// quickOne returns the usual case for one key: how it is judged, and what is spent.
func quickOne(judge, spend, write string) func(op byte) string {
	return func(op byte) string {
		denied, store := "denied", "store"
		switch {
		case op == opPeek:
			spend, write, store = "", "", ""
		case op == opKeep && judge != "bucket leaky":
			denied = "unusual"
		}
		return fill(lua("quick/one"), "READ", "read", "VERDICT", judge, "DENIED", denied, "SPEND", spend, "WRITE", write, "STORE", store)
	}
}

// quickMany returns the usual case for several keys, of which none books ahead but leaky
// buckets.
func quickMany(op byte) string {
	text := fill(lua("quick/many"), "READ", "read", "BUCKET", "bucket", "LEAKY", "leaky", "FIXED", "fixed", "COUNTER", "counter", "LOG", "log")
	if op == opPeek {
		return fill(text, "SPEND_BUCKET", "", "SPEND_FIXED", "", "SPEND_COUNTER", "", "SPEND_LOG", "", "WRITE", "", "STORE", "")
	}
	return fill(text, "SPEND_BUCKET", "spend_bucket", "SPEND_FIXED", "spend_fixed", "SPEND_COUNTER", "spend_counter", "SPEND_LOG", "spend_log",
		"WRITE", "write", "STORE", "store")
}

// fill puts blocks into the places that a text has for them.
func fill(text string, places ...string) string {
	for i := 0; i < len(places); i += 2 {
		var blocks strings.Builder
		for _, name := range strings.Fields(places[i+1]) {
			blocks.WriteString(lua("quick/" + name))
		}
		text = strings.Replace(text, "--"+places[i]+"\n", blocks.String(), 1)
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
	switch op {
	case opTake:
		return d.take
	case opKeep:
		return d.keep
	}
	return d.peek
}
