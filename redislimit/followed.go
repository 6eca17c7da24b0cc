package redislimit

import "strings"

// following are the scripts for calls that follow their keys' spending. Package policy makes
// such calls for rules with notices. They are separate scripts, so the others stay short.
var following = newFollowing(blocks{luaFiles})

type followingScripts struct{ decide, correct *script }

func newFollowing(b blocks) *followingScripts {
	return &followingScripts{
		decide: newScript("", b.lua("clock", "followed_keys"), "return (function()\n"+b.lua(library...)+b.lua("opens", "decide", "followed")+"end)()\n"),
		correct: newScript("", b.lua("clock", "followed_keys"), b.lua(library...), b.lua("opens", "followed_before"),
			"local reply = (function()\n"+b.lua("settle")+"end)()\n", b.lua("followed_after")),
	}
}

// sumSize and followedSize are the sizes of one key's part at the end of a decision's reply, and of a correction's.
const (
	sumSize      = 7
	followedSize = 2 + 7*7
)

// sumKeys returns the keys, followed by the keys of their sums of open estimates.
// No limiter's key has such a separator before its first brace: see namespace.
func sumKeys(keys []string) []string {
	all := make([]string, 2*len(keys))
	copy(all, keys)
	for i, key := range keys {
		brace := strings.IndexByte(key, '{')
		separator := "+"
		if key[brace-1] == '#' {
			separator = "*"
		}
		all[len(keys)+i] = key[:brace-1] + separator + key[brace:]
	}
	return all
}
