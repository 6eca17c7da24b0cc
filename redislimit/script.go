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

	settleScript = newScript("", library, lua("settle"))
	decideMany   = newDecider(quickMany())
	decideOne    = map[byte]decider{
		kindToken:   newDecider(quickOne("bucket")),
		kindLeaky:   newDecider(quickOne("bucket")),
		kindFixed:   newDecider(quickOne("fixed")),
		kindLog:     newDecider(quickOne("log")),
		kindCounter: newDecider(quickOne("counter")),
	}
)

// decider is a script that decides, once to spend and once to look.
type decider struct{ take, peek *script }

// newDecider puts the usual case, which returns, before the general one, whose
// definitions alone take Redis longer than a usual decision.
func newDecider(quick string) decider {
	return decider{newScript("", quick, deciding), newScript(noWrites, quick, deciding)}
}

func quickOne(kind string) string {
	reply := "reply_raw"
	if kind == "log" {
		reply = "reply_log"
	}
	return fill(lua("quick/one"), "READ", "read", "KIND", kind, "WRITE", "write", "REPLY", reply)
}

func quickMany() string {
	return fill(lua("quick/many"), "READ", "read", "BUCKET", "bucket", "FIXED", "fixed", "COUNTER", "counter", "LOG", "log", "WRITE", "write")
}

// fill puts blocks into the places that a text has for them.
func fill(text string, places ...string) string {
	for i := 0; i < len(places); i += 2 {
		text = strings.Replace(text, "--"+places[i]+"\n", lua("quick/"+places[i+1]), 1)
	}
	return text
}

// deciderFor returns the script for a decision.
func (s *session) deciderFor() decider {
	if len(s.charges) == 1 && !s.charges[0].shadow {
		return decideOne[s.charges[0].plan.kind]
	}
	return decideMany
}
