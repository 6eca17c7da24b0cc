package store

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"
)

// real is a process of redis-server.
type real struct {
	path, dir, host, port string
	cmd                   *exec.Cmd
}

func startReal(path string) (Store, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &real{path: path}
	r.host, r.port, _ = net.SplitHostPort(l.Addr().String())
	_ = l.Close() // only its port was wanted
	if r.dir, err = os.MkdirTemp("", "redis"); err != nil {
		return nil, err
	}
	if err := r.Revive(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *real) Name() string { return "a redis-server of our own, on port " + r.port }

func (r *real) Addr() string { return net.JoinHostPort(r.host, r.port) }

func (r *real) Kill() error {
	if err := r.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = r.cmd.Wait() // it was killed
	return nil
}

func (r *real) Revive() error {
	r.cmd = exec.Command(r.path, "--port", r.port, "--bind", r.host, "--save", "", "--appendonly", "no", "--dir", r.dir)
	if err := r.cmd.Start(); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer client.Close()
	for range 500 {
		if client.Ping(context.Background()).Err() == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("redis-server does not answer")
}

func (r *real) Close() {
	if r.cmd.Process != nil {
		_ = r.Kill() // it may have been killed before
	}
	_ = os.RemoveAll(r.dir)
}
