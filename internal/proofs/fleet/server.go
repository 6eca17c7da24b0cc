package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/internal/dev/proc"
)

// server is a Redis server that saves no data.
type server struct {
	program string
	addr    string
	port    string
	dir     string
	cmd     *exec.Cmd
	admin   *redis.Client
}

// startServer starts a server on a free port.
func startServer(ctx context.Context) (*server, error) {
	program, err := proc.RedisServer()
	if err != nil {
		return nil, err
	}
	for range 5 { // another process may take a port first
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
		s := &server{program: program, addr: l.Addr().String()}
		_, s.port, _ = net.SplitHostPort(s.addr)
		_ = l.Close() // only the port is needed
		if s.dir, err = os.MkdirTemp("", "fleet"); err != nil {
			return nil, err
		}
		s.admin = redis.NewClient(&redis.Options{Addr: s.addr, ReadTimeout: 30 * time.Second})
		if err = s.start(ctx); err == nil {
			return s, nil
		}
		if s.cmd.Process == nil {
			return nil, err
		}
		s.close()
	}
	return nil, err
}

// start starts the server, empty, and waits until it answers.
func (s *server) start(ctx context.Context) error {
	s.cmd = exec.Command(s.program, "--port", s.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--dir", s.dir, "--enable-debug-command", "yes")
	if err := s.cmd.Start(); err != nil {
		return err
	}
	mine := fmt.Sprintf("process_id:%d\r\n", s.cmd.Process.Pid)
	for range 500 {
		info, err := s.admin.Info(ctx, "server").Result()
		if strings.Contains(info, mine) {
			return nil
		}
		if err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("redis-server on port %s does not answer", s.port)
}

// kill ends the server as a crash would.
func (s *server) kill() error {
	if err := s.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = s.cmd.Wait() // it was killed
	return nil
}

// do sends a command.
func (s *server) do(ctx context.Context, args ...any) error { return s.admin.Do(ctx, args...).Err() }

// close ends the server and removes its files.
func (s *server) close() {
	_ = proc.Resume(s.cmd.Process)
	_ = s.kill()
	_ = s.admin.Close()
	_ = os.RemoveAll(s.dir)
}

var scriptCalls = regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+)`)

// scripts counts the scripts run by the server since its start.
func (s *server) scripts(ctx context.Context) (n int64, err error) {
	info, err := s.admin.Info(ctx, "commandstats").Result()
	for _, m := range scriptCalls.FindAllStringSubmatch(info, -1) {
		calls, _ := strconv.ParseInt(m[1], 10, 64) // it was matched as digits
		n += calls
	}
	return n, err
}
