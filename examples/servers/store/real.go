package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// real is a process of redis-server.
type real struct {
	path, dir, host, port string
	cmd                   *exec.Cmd
}

func startReal(path string) (Store, error) {
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		return nil, err
	}
	r := &real{path: path, dir: dir}
	for range 5 { // another process may take a port first
		if err = r.choosePort(); err != nil {
			break
		}
		if err = r.Revive(); err == nil {
			return r, nil
		}
		if r.cmd.Process != nil {
			_ = r.Kill() // it may have ended by itself
		}
	}
	_ = os.RemoveAll(dir)
	return nil, err
}

func (r *real) choosePort() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.host, r.port, err = net.SplitHostPort(l.Addr().String())
	return errors.Join(err, l.Close()) // only the port is needed
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
	mine := fmt.Sprintf("process_id:%d\r\n", r.cmd.Process.Pid)
	for range 500 {
		info, err := client.Info(context.Background(), "server").Result()
		if strings.Contains(info, mine) {
			return nil
		}
		if err == nil {
			break
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
