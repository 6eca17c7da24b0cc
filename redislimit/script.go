package redislimit

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed lua
var luaFiles embed.FS

// current are this version's scripts.
var current = newScripts(luaFiles)

// scripts are all scripts in one version of this package.
type scripts struct {
	settle, reset *script
	one           map[byte]*decider // for a decision on one key, by the key's kind
	many          *decider
}

func newScripts(files fs.FS) *scripts {
	b := blocks{files}
	s := &scripts{
		settle: newScript("", b.lua("clock"), b.lua(library...), b.lua("settle")),
		reset:  newScript(allowOOM, b.lua("reset")),
		one:    make(map[byte]*decider),
		many:   b.decider(b.quickMany),
	}
	for kind := range meters {
		s.one[kind] = b.deciderOne(kind)
	}
	return s
}

// blocks are the parts of scripts: Lua files.
type blocks struct{ files fs.FS }

// lua returns blocks, one after the other. Each can use the earlier ones.
func (f blocks) lua(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		text, err := fs.ReadFile(f.files, "lua/"+name+".lua")
		if err != nil {
			panic(err) // the block is not embedded, a bug in this package
		}
		b.WriteString(named(string(text)))
		b.WriteByte('\n')
	}
	return b.String()
}

// script is a text. Once Redis has run it, it runs it again by its hash.
type script struct {
	text, sha       string
	shared          *script // the script for several such decisions in one call; nil if there is none
	across          *script // the same for undeclared keys of several slots
	undeclared      bool    // its keys are plain arguments
	textArg, shaArg any     // text and sha, as arguments of a command
}

// newScript makes a script. With its first line, Redis refuses the
// script as a whole if memory is short, and not in the middle.
func newScript(flags string, blocks ...string) *script {
	text := "#!lua" + flags + "\n" + strings.Join(blocks, "\n")
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &script{text: text, sha: sha, textArg: text, shaArg: sha}
}

// noWrites lets a script run where Redis refuses writes, and allowOOM where memory is short.
const (
	noWrites = " flags=no-writes"
	allowOOM = " flags=allow-oom"
)

// acrossSlots makes a script for keys of several slots. A server runs it
// only if none is declared: they are the arguments before the last one.
func acrossSlots(blocks ...string) *script {
	keys := "local KEYS, ARGV = ARGV, { table.remove(ARGV) }"
	s := newScript(" flags=allow-cross-slot-keys", append([]string{keys}, blocks...)...)
	s.undeclared = true
	return s
}

var library = []string{"arith", "bucket", "window", "counter", "log", "held", "open", "state", "book", "gaps", "carry", "load"}

// general returns the general case, as a function within the script. At the top level,
// each variable of a script would take time, even if the script does not use it.
func (f blocks) general(last string) string {
	return "return (function()\n" + f.lua(library...) + f.lua("decide", last) + "end)()\n"
}

// decider holds a decision's scripts: spend now, book ahead, or look.
type decider struct {
	take, keep, peek *script
	open             *script // for a token bucket or several keys: keeps an open reservation, without a usual case
}

// decider puts the usual case before the general one. The usual case returns early,
// before the definitions of the general one: these take Redis longer than the usual case.
func (f blocks) decider(quick func(op byte) string) *decider {
	one := func(flags string, op byte) *script {
		return newScript(flags, f.lua("clock"), quick(op), f.general("run"))
	}
	general := newScript("", f.lua("clock"), f.general("run"))
	return &decider{one("", opTake), one("", opKeep), one(noWrites, opPeek), general}
}

// deciderOne returns the decider for one key, alone and with others.
//
// Units in use have no usual case: a settlement follows each decision. A calendar's usual case is a denial:
// allowed decisions on quotas are rarer than on rates, and denied callers may come again and again.
func (f blocks) deciderOne(kind byte) *decider {
	if kind == kindCalendar || kind == kindHeld {
		return f.decider(func(op byte) string {
			if kind == kindHeld || op == opKeep || f.either("calendar", "") == "" {
				return ""
			}
			return fill(f.quick("one"), "JUDGE", f.first("first", f.loaded("calendar")), "DENIED", f.quick("denied"), "SPEND", "", "STORE", "")
		})
	}
	d, u := f.decider(f.quickOne(kind)), f.usual(kind)
	text := []string{f.lua("clock"), fill(f.quick("shared"), "JUDGE", f.denied(kind, u.judge), "SPEND", u.spend, "STORE", f.quick("store")), f.general("shared")}
	d.take.shared = newScript("", text...)
	d.take.across = acrossSlots(text...)
	return d
}

// usual names the blocks for the usual case of a kind: one judges a cost, and the other one spends and writes it.
type usual struct{ judge, spend string }

func (f blocks) usual(kind byte) usual {
	switch kind {
	case kindToken:
		return usual{f.first("first", f.loaded("bucket")), f.quick("spend_bucket", "write")}
	case kindLeaky:
		return usual{f.first("first", f.loaded("bucket", "leaky")), f.quick("spend_bucket", "write")}
	case kindFixed:
		return usual{f.first("first", f.quick("load", "read", "fixed")), f.quick("spend_fixed", "write")}
	case kindLog:
		return usual{f.first("first_log", f.loaded("load_log", f.either("read_log", "read"), "log")), f.quick("spend_log")}
	case kindCounter:
		return usual{f.first("first", f.quick("load", "read", "counter")), f.quick("spend_counter", "write")}
	}
	panic(fmt.Sprintf("redislimit: kind %#x", kind))
}

// loaded returns the blocks of the usual case. The first one loads the state.
func (f blocks) loaded(names ...string) string {
	return fill(f.quick(names...), "LOAD", f.quick("load"))
}

// first adds to a kind's judgement how the first part of a state is read.
func (f blocks) first(name, judge string) string {
	if strings.Contains(judge, "--FIRST\n") { // an older version reads the whole state
		judge = fill(judge, "FIRST", f.quick(name))
	}
	return judge
}

// denied adds to a kind's judgement the denial noted after the state, and the
// denial by bookings. The bookings of leaky buckets and logs are their spendings.
func (f blocks) denied(kind byte, judge string) string {
	if strings.Contains(judge, "--NOTED\n") {
		judge = fill(judge, "NOTED", f.quick("noted"))
	}
	switch {
	case kind == kindLeaky, kind == kindLog, !strings.Contains(judge, "--BOOKED\n"):
		return judge
	case kind == kindToken:
		return fill(judge, "BOOKED", fill(f.quick("booked"), "SAME", f.quick("booked_same")))
	}
	return fill(judge, "BOOKED", f.quick("booked"))
}

// quickOne returns the usual case for one key.
func (f blocks) quickOne(kind byte) func(op byte) string {
	u := f.usual(kind)
	return func(op byte) string {
		denied := f.quick("denied")
		switch {
		case op == opPeek:
			return fill(f.quick("one"), "JUDGE", f.denied(kind, u.judge), "DENIED", denied, "SPEND", "", "STORE", "")
		case op == opKeep && kind != kindLeaky && kind != kindLog:
			denied = f.quick("unusual")
		}
		judge := u.judge
		if op == opTake {
			judge = f.denied(kind, judge)
		}
		return fill(f.quick("one"), "JUDGE", judge, "DENIED", denied, "SPEND", u.spend, "STORE", f.quick("store"))
	}
}

// quickMany returns the script's usual case for several keys. In the usual case only leaky buckets may book ahead.
func (f blocks) quickMany(op byte) string {
	text := f.quick("many")
	for place, kind := range map[string]byte{"TOKEN": kindToken, "LEAKY": kindLeaky, "FIXED": kindFixed, "LOG": kindLog, "COUNTER": kindCounter} {
		u := f.usual(kind)
		if op == opPeek {
			u.spend = ""
		}
		text = fill(text, place, u.judge+fill(f.quick("take"), "SPEND", u.spend))
	}
	return fill(text, "STORE", f.quick("store"))
}

// quick returns blocks of the usual case.
func (f blocks) quick(names ...string) (text string) {
	for _, name := range names {
		text += f.lua("quick/" + name)
	}
	return text
}

// either returns the name of a block of the usual case, or of an older version's block instead.
func (f blocks) either(name, older string) string {
	if _, err := fs.Stat(f.files, "lua/quick/"+name+".lua"); err != nil {
		return older
	}
	return name
}

// fill puts texts into a text's places for them.
func fill(text string, places ...string) string {
	for i := 0; i < len(places); i += 2 {
		text = strings.Replace(text, "--"+places[i]+"\n", places[i+1], 1)
	}
	return text
}
