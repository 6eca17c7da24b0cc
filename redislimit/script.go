package redislimit

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
)

// The scripts are assembled from blocks, each of which knows those before it.
var (
	//go:embed lua/arith.lua
	luaArith string
	//go:embed lua/bucket.lua
	luaBucket string
	//go:embed lua/window.lua
	luaWindow string
	//go:embed lua/counter.lua
	luaCounter string
	//go:embed lua/log.lua
	luaLog string
	//go:embed lua/state.lua
	luaState string
	//go:embed lua/book.lua
	luaBook string
	//go:embed lua/carry.lua
	luaCarry string
	//go:embed lua/load.lua
	luaLoad string
	//go:embed lua/quick.lua
	luaQuick string
	//go:embed lua/decide.lua
	luaDecide string
	//go:embed lua/settle.lua
	luaSettle string
)

// script is a text that Redis knows by its hash once it has run it.
type script struct {
	text, sha       string
	textArg, shaArg any // the same, as arguments of a command
}

// newScript assembles a script. The first line makes Redis refuse it whole if memory
// is short, rather than in the middle.
func newScript(flags string, blocks ...string) *script {
	text := "#!lua" + flags + "\n" + strings.Join(blocks, "\n")
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &script{text, sha, text, sha}
}

var engine = strings.Join([]string{luaArith, luaBucket, luaWindow, luaCounter, luaLog, luaState, luaBook, luaCarry, luaLoad}, "\n")

var (
	decideScript = newScript("", luaQuick, engine, luaDecide)
	peekScript   = newScript(" flags=no-writes", luaQuick, engine, luaDecide)
	settleScript = newScript("", engine, luaSettle)
)
