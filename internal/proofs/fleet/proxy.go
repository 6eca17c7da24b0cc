package main

import (
	"io"
	"net"
	"sync/atomic"
)

// proxy stands between the fleet and Redis, and can drop replies. Commands with lost replies have been executed.
type proxy struct {
	*relay
	dropping atomic.Bool
}

func startProxy(to string) (p *proxy, err error) {
	p = new(proxy)
	p.relay, err = startRelay(to, p.carry)
	return p, err
}

func (p *proxy) carry(client, server net.Conn) {
	go func() {
		_, _ = io.Copy(server, client)
		_, _ = client.Close(), server.Close()
	}()
	p.replies(client, server)
}

// replies passes replies on. After it has dropped one, it passes on no more,
// because the client would read a reply as the answer to an earlier command.
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
