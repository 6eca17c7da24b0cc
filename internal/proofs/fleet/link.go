package main

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link stands between a region and the store of another one. It delays data each way, and it can be cut: then data in transit
// is lost, and so is the connection.
type link struct {
	listener net.Listener
	to       string
	delay    time.Duration // each way
	cut      atomic.Bool

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func startLink(to string, delay time.Duration) (*link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	k := &link{listener: l, to: to, delay: delay, conns: make(map[net.Conn]bool)}
	go k.serve()
	return k, nil
}

func (k *link) addr() string { return k.listener.Addr().String() }

func (k *link) serve() {
	for {
		c, err := k.listener.Accept()
		if err != nil {
			return
		}
		go k.pass(c)
	}
}

// pass passes one connection on, until either side closes it.
func (k *link) pass(client net.Conn) {
	server, err := net.Dial("tcp", k.to)
	if err != nil {
		_ = client.Close()
		return
	}
	pair := [2]net.Conn{client, server}
	k.mu.Lock()
	k.conns[client], k.conns[server] = true, true
	k.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { k.carry(server, client, pair) })
	wg.Go(func() { k.carry(client, server, pair) })
	wg.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, client)
	delete(k.conns, server)
}

// chunk is the data of one read.
type chunk struct {
	bytes []byte
	due   time.Time
}

// carry copies one direction, late. Chunks travel at once, as on a real link.
func (k *link) carry(to, from net.Conn, pair [2]net.Conn) {
	chunks := make(chan chunk, 1024)
	go func() {
		defer close(chunks)
		for {
			b := make([]byte, 1<<14)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			chunks <- chunk{b[:n], time.Now().Add(k.delay)}
		}
	}()
	lost := false
	for c := range chunks {
		time.Sleep(time.Until(c.due))
		if lost = lost || k.cut.Load(); lost {
			continue // later data cannot be passed on, either
		}
		if _, err := to.Write(c.bytes); err != nil {
			break
		}
	}
	_, _ = pair[0].Close(), pair[1].Close()
	for range chunks {
	}
}

// mend ends a cut: the connections that were open do not come back.
func (k *link) mend() {
	k.mu.Lock()
	for c := range k.conns {
		_ = c.Close()
	}
	k.mu.Unlock()
	k.cut.Store(false)
}

func (k *link) close() {
	_ = k.listener.Close()
	k.mend()
}
