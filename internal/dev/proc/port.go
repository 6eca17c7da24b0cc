package proc

import (
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort returns a port for a server. It is below the ports assigned to connections (from
// 32768 on Linux): otherwise a connection could take the port before the server listens.
func FreePort() (port int, err error) {
	for range 100 {
		port = 20_000 + rand.IntN(12_000)
		var l net.Listener
		if l, err = net.Listen("tcp", ":"+strconv.Itoa(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}
