package main

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link connects a region with another one's store. It delays data in each
// direction. If it is cut, data in transit and all connections are lost.
type link struct {
	*relay
	delay time.Duration // in each direction
	cut   atomic.Bool
}

func startLink(to string, delay time.Duration) (k *link, err error) {
	k = &link{delay: delay}
	k.relay, err = startRelay(to, k.carry)
	return k, err
}

func (k *link) carry(client, server net.Conn) {
	pair := [2]net.Conn{client, server}
	var wg sync.WaitGroup
	wg.Go(func() { k.copy(server, client, pair) })
	wg.Go(func() { k.copy(client, server, pair) })
	wg.Wait()
}

// chunk is one read's data.
type chunk struct {
	bytes []byte
	due   time.Time
}

// copy copies one direction with the delay. Chunks may be in transit at the same time, as on a real link.
func (k *link) copy(to, from net.Conn, pair [2]net.Conn) {
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
			continue // later data is lost, too
		}
		if _, err := to.Write(c.bytes); err != nil {
			break
		}
	}
	_, _ = pair[0].Close(), pair[1].Close()
	for range chunks {
	}
}

// mend ends a cut. The lost connections stay lost.
func (k *link) mend() {
	k.hangUp()
	k.cut.Store(false)
}

func (k *link) close() {
	_ = k.listener.Close()
	k.mend()
}
