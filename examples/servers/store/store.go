// Package store starts a Redis server for an example: a redis-server of
// its own, or a server embedded in the process if none is installed.
package store

import "github.com/weir-go/ratelimit/internal/dev/proc"

// Store is a server started for an example. It saves no data to
// disk. Only its methods Name and Addr are safe for concurrent use.
type Store interface {
	Name() string  // Name returns a description for people.
	Addr() string  // Addr returns the host and the port.
	Kill() error   // Kill ends the server as a crash would. Its data is lost.
	Revive() error // Revive starts a killed server again, without data, at the same address.
	Close()        // Close ends the server.
}

// Start starts redis-server (or the program in REDIS_SERVER). If there
// is none, or if embedded is true, it starts the embedded server.
func Start(embedded bool) (Store, error) {
	path, err := proc.RedisServer()
	if err != nil || embedded {
		return startMini()
	}
	return startReal(path)
}
