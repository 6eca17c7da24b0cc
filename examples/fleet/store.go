package main

import (
	"context"
	_ "embed"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// store is the Redis that all servers share. It can be killed and revived, and loses its
// data by that.
type store interface {
	name() string
	addr() string
	kill() error
	revive() error
	close()
}

// newStore starts a redis-server, or what is embedded if there is none.
func newStore(embedded bool) (store, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil || embedded {
		return newMini()
	}
	return newReal(path)
}

// real is a process of redis-server.
type real struct {
	path, dir, host, port string
	cmd                   *exec.Cmd
}

func newReal(path string) (store, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &real{path: path}
	r.host, r.port, _ = net.SplitHostPort(l.Addr().String())
	_ = l.Close() // only its port was wanted
	if r.dir, err = os.MkdirTemp("", "fleet"); err != nil {
		return nil, err
	}
	return r, r.revive()
}

func (r *real) name() string { return "a redis-server of our own, on port " + r.port }

func (r *real) addr() string { return net.JoinHostPort(r.host, r.port) }

func (r *real) kill() error {
	if err := r.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = r.cmd.Wait() // it was killed
	return nil
}

func (r *real) revive() error {
	r.cmd = exec.Command(r.path, "--port", r.port, "--bind", r.host, "--save", "", "--appendonly", "no", "--dir", r.dir)
	if err := r.cmd.Start(); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: r.addr()})
	defer client.Close()
	for range 500 {
		if client.Ping(context.Background()).Err() == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("redis-server does not answer")
}

func (r *real) close() {
	_ = r.kill()
	_ = os.RemoveAll(r.dir)
}

// mini is a server in this process. It knows less of Lua than Redis does.
type mini struct{ *miniredis.Miniredis }

func newMini() (store, error) {
	m := mini{miniredis.NewMiniRedis()}
	if err := m.Start(); err != nil {
		return nil, err
	}
	m.Server().SetPreHook(translate)
	return m, nil
}

func (m mini) name() string {
	return "an embedded server (miniredis), which is slow; install redis-server for a real one"
}

func (m mini) addr() string { return m.Addr() }

func (m mini) kill() error {
	m.FlushAll()
	m.Close()
	return nil
}

func (m mini) revive() error {
	if err := m.Restart(); err != nil {
		return err
	}
	m.Server().SetPreHook(translate)
	return nil
}

func (m mini) close() { m.Close() }

// structLua is Redis's library struct, as far as redislimit needs it, in Lua.
//
//go:embed struct.lua
var structLua string

// translate gives scripts what miniredis lacks: it does not know the first line that says
// in which language a script is written, nor the library struct.
func translate(_ *server.Peer, cmd string, args ...string) bool {
	if cmd == "EVAL" && len(args) > 0 && strings.HasPrefix(args[0], "#!lua") {
		_, script, _ := strings.Cut(args[0], "\n")
		args[0] = structLua + script
	}
	return false
}
