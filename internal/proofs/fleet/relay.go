package main

import (
	"net"
	"sync"
)

// relay passes connections on to an address.
type relay struct {
	listener net.Listener
	to       string
	carry    func(client, server net.Conn) // copies one connection's data until either side closes it

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func startRelay(to string, carry func(client, server net.Conn)) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, to: to, carry: carry, conns: make(map[net.Conn]bool)}
	go r.serve()
	return r, nil
}

func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) serve() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.pass(c)
	}
}

func (r *relay) pass(client net.Conn) {
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		_ = client.Close()
		return
	}
	r.mu.Lock()
	r.conns[client], r.conns[server] = true, true
	r.mu.Unlock()
	r.carry(client, server)
	_, _ = client.Close(), server.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, client)
	delete(r.conns, server)
}

// hangUp closes the open connections.
func (r *relay) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
}

func (r *relay) close() {
	_ = r.listener.Close()
	r.hangUp()
}
