// Package proc finds and handles the server processes of tests, proofs and examples. Functions that need Unix return
// errors.ErrUnsupported on other systems, so the tests compile there.
package proc

import (
	"fmt"
	"os"
	"os/exec"
)

// RedisServer returns the path of a Redis server: the path in the environment variable REDIS_SERVER (Valkey's, or another
// version's), else redis-server. An error describes how to get one.
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
