package store

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// mini is a server in this process. It supports less Lua than Redis.
type mini struct {
	redis  *miniredis.Miniredis
	at     string    // its address
	hashes *sync.Map // from a script's hash to its translation's hash
}

func startMini() (Store, error) {
	m := mini{redis: miniredis.NewMiniRedis(), hashes: new(sync.Map)}
	if err := m.redis.Start(); err != nil {
		return nil, err
	}
	m.at = m.redis.Addr()
	m.redis.Server().SetPreHook(m.translate)
	return m, nil
}

func (m mini) Name() string {
	return "an embedded server (miniredis), which is slow; install redis-server for a real one"
}

func (m mini) Addr() string { return m.at }

func (m mini) Kill() error {
	m.redis.FlushAll()
	m.redis.Close()
	return nil
}

func (m mini) Revive() error {
	if err := m.redis.Restart(); err != nil {
		return err
	}
	m.redis.Server().SetPreHook(m.translate)
	return nil
}

func (m mini) Close() { m.redis.Close() }

// structLua is a part of Redis's library struct in Lua: what redislimit needs.
//
//go:embed struct.lua
var structLua string

// translate adds to scripts what miniredis lacks: the library struct, and support for a first line
// with the script's language. So the stored script and the client's script have different hashes.
func (m mini) translate(_ *server.Peer, cmd string, args ...string) bool {
	switch {
	case len(args) == 0:
	case cmd == "EVAL" && strings.HasPrefix(args[0], "#!lua"):
		_, script, _ := strings.Cut(args[0], "\n")
		script = structLua + script
		m.hashes.Store(hash(args[0]), hash(script))
		args[0] = script
	case cmd == "EVALSHA":
		if known, ok := m.hashes.Load(args[0]); ok {
			args[0] = known.(string)
		}
	}
	return false
}

func hash(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}
