package main

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// proxy stands between the fleet and Redis, and can drop replies: the server has then executed commands whose replies are lost.
type proxy struct {
	listener net.Listener
	to       string
	dropping atomic.Bool

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func startProxy(to string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, to: to, conns: make(map[net.Conn]bool)}
	go p.serve()
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.pass(c)
	}
}

// pass passes one connection on, until either side closes it.
func (p *proxy) pass(client net.Conn) {
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		_ = client.Close()
		return
	}
	p.add(client, server)
	defer p.remove(client, server)
	go func() {
		_, _ = io.Copy(server, client)
		p.remove(client, server)
	}()
	p.replies(client, server)
}

// replies passes replies on, and none any more once one was dropped: the client would
// take it for the answer to another command.
func (p *proxy) replies(client, server net.Conn) {
	buf := make([]byte, 1<<16)
	dropped := false
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		if dropped = dropped || p.dropping.Load(); dropped {
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) add(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = true
	}
}

func (p *proxy) remove(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}
