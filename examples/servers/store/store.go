// Package store starts the Redis that an example runs on: a redis-server of its own, or,
// where none is installed, a server embedded in the process.
package store

import "github.com/weir-go/ratelimit/internal/dev/proc"

// Store is a server that was started for an example. It keeps nothing on disk. Its methods
// are not safe for concurrent use, except Name and Addr.
type Store interface {
	Name() string  // Name returns a description for people.
	Addr() string  // Addr is its host and port.
	Kill() error   // Kill ends it as a crash would; its data is lost.
	Revive() error // Revive starts a killed one again, empty, at the same address.
	Close()        // Close ends it for good.
}

// Start starts a redis-server (or the program that REDIS_SERVER names), or the embedded server if there is none or if
// embedded is true.
func Start(embedded bool) (Store, error) {
	path, err := proc.RedisServer()
	if err != nil || embedded {
		return startMini()
	}
	return startReal(path)
}
