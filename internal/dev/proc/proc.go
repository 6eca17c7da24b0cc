// Package proc finds and controls the server processes of tests, proofs and examples, and finds ports for them. On systems
// other than Unix, some functions return errors.ErrUnsupported, so that the tests compile there.
package proc

import (
	"fmt"
	"os"
	"os/exec"
)

// RedisServer returns the path of a Redis server. It is the value of the environment variable REDIS_SERVER, for
// example the path of Valkey or another version, or otherwise redis-server. The error describes how to install one.
func RedisServer() (string, error) {
	if name := os.Getenv("REDIS_SERVER"); name != "" {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("REDIS_SERVER names no program: %w", err)
		}
		return path, nil
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", fmt.Errorf("apt-get install redis-server, or name a server by REDIS_SERVER: %w", err)
	}
	return path, nil
}
