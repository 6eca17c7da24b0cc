package proc

import (
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort returns a port on which a server can listen. It is below the ports that systems assign to connections,
// which begin at 32768 on Linux. Otherwise a connection could take it before the server listens.
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
