// Package redistest starts real Redis servers and clusters for tests, without a client library. It
// starts redis-server, or the program in the environment variable REDIS_SERVER: see [proc.RedisServer].
package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/ratelimit/internal/dev/proc"
)

// Server is a server process. It ends with the test, and saves no data.
type Server struct {
	Addr string
	bus  string // the port for other nodes of a cluster
	cmd  *exec.Cmd

	mu   sync.Mutex // guards conn
	conn net.Conn
	read *bufio.Reader
}

// Program returns the server's path. If there is no server, Program skips the test. It fails the
// test in CI, because CI must test with a real server, and if REDIS_SERVER names a missing program.
func Program(t testing.TB) string {
	t.Helper()
	path, err := proc.RedisServer()
	if err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("REDIS_SERVER") != "" {
			t.Fatal(err)
		}
		t.Skipf("not tested on a real server: %v", err)
	}
	return path
}

// FreePort returns a port without a listening process.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := proc.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Start starts a server. Args are command-line options. With --cluster-enabled the server gets a port for its cluster.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	path := Program(t)
	cluster := slices.Contains(args, "--cluster-enabled")
	for try := range 5 { // another process may take the port first
		port, bus := strconv.Itoa(FreePort(t)), ""
		all := args
		if cluster {
			bus = strconv.Itoa(FreePort(t))
			all = append(slices.Clone(args), "--cluster-port", bus)
		}
		if s := start(t, path, port, all); s != nil {
			s.bus = bus
			return s
		}
		t.Logf("try %d: %s did not start", try, filepath.Base(path))
	}
	t.Fatalf("%s does not start", path)
	return nil
}

func start(t testing.TB, path, port string, args []string) *Server {
	t.Helper()
	all := append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir()}, args...)
	s := &Server{Addr: "127.0.0.1:" + port, cmd: exec.Command(path, all...)}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		// If another process took the port first, its server answers.
		info, err := s.Do("INFO", "server")
		mine := err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", s.cmd.Process.Pid))
		if err == nil && !mine && strings.Contains(info, "process_id:") {
			break
		}
		if mine {
			// PING fails until the server has loaded its data, while INFO does not
			if pong, err := s.Do("PING"); err == nil && pong == "PONG" {
				return s
			}
		}
	}
	s.Kill()
	return nil
}

// Kill ends the server's process, even if it is suspended, and waits for its end.
func (s *Server) Kill() {
	if s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	}
}

// Pause suspends the server's process until Resume.
func (s *Server) Pause() error { return proc.Suspend(s.cmd.Process) }

// Resume continues a suspended process.
func (s *Server) Resume() error { return proc.Resume(s.cmd.Process) }

// Do sends one command, and returns the answer as text. An array's elements are separated by newlines.
func (s *Server) Do(args ...string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		conn, err := net.DialTimeout("tcp", s.Addr, 10*time.Second)
		if err != nil {
			return "", err
		}
		s.conn, s.read = conn, bufio.NewReader(conn)
	}
	_ = s.conn.SetDeadline(time.Now().Add(30 * time.Second)) // longer than a busy machine stops
	answer, err := s.doLocked(args)
	var refused refusal
	if err != nil && !errors.As(err, &refused) {
		s.conn.Close()
		s.conn = nil
	}
	return answer, err
}

func (s *Server) doLocked(args []string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(s.conn, b.String()); err != nil {
		return "", err
	}
	return readAnswer(s.read)
}

// refusal is an error in a server's answer.
type refusal string

func (e refusal) Error() string { return string(e) }

func readAnswer(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil || len(line) < 3 {
		return "", errors.Join(err, io.ErrUnexpectedEOF)
	}
	kind, line := line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case '+', ':':
		return line, nil
	case '-':
		return "", refusal(line)
	}
	n, err := strconv.Atoi(line)
	switch {
	case err != nil:
		return "", err
	case n < 0:
		return "", nil
	case kind == '$':
		b := make([]byte, n+2)
		_, err := io.ReadFull(r, b)
		return string(b[:n]), err
	}
	var lines []string
	for range n {
		element, err := readAnswer(r)
		if err != nil {
			return "", err
		}
		lines = append(lines, element)
	}
	return strings.Join(lines, "\n"), nil
}
