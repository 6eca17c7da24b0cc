package redislimit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
)

// startSentinel starts a Sentinel and returns its address. The Sentinel
// promotes a replica when the master has been silent for half a second.
func startSentinel(t *testing.T, master string) string {
	host, port, err := net.SplitHostPort(master)
	require.NoError(t, err)
	for range 5 { // another process may take the port first
		own := redistest.FreePort(t)
		if cmd := sentinelOn(t, own, host, port); answers(t, own, cmd.Process.Pid) {
			return fmt.Sprintf("127.0.0.1:%d", own)
		}
	}
	t.Fatal("no Sentinel starts")
	return ""
}

// sentinelOn starts a Sentinel on a port.
func sentinelOn(t *testing.T, own int, host, port string) *exec.Cmd {
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `port %d
bind 127.0.0.1
sentinel monitor main %s %s 1
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 5000
`, own, host, port), 0o600))
	cmd := exec.Command(redistest.Program(t), file, "--sentinel")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // Wait reports that it was killed
	})
	return cmd
}

// answers reports whether the process pid answers on the port.
func answers(t *testing.T, port, pid int) bool {
	client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port)})
	defer client.Close()
	for range 500 {
		if info, err := client.Info(t.Context(), "server").Result(); err == nil {
			return strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", pid))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// If the client finds the master through Sentinel, a failover means some
// seconds of ErrUnavailable. Only data not yet replicated is lost: none here.
func TestAFailoverBySentinelKeepsReplicatedSpending(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("some seconds, until Sentinel has found out")
	}
	master, replica := startServer(t), startServer(t)
	host, port, err := net.SplitHostPort(master.addr)
	require.NoError(t, err)
	_, err = replica.Do("REPLICAOF", host, port)
	require.NoError(t, err)
	sentinel := startSentinel(t, master.addr)
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel}})
	t.Cleanup(func() { _ = client.Close() })
	limiters := map[string]*Limiter{}
	for _, limit := range fiveLimits() {
		limit.Rate.Per = 24 * time.Hour // nothing is regained during the test
		l, err := New(client, limit, &Options{Name: limit.Name, Timeout: time.Second})
		require.NoError(t, err)
		limiters[limit.Name] = l
	}
	knows := redis.NewSentinelClient(&redis.Options{Addr: sentinel})
	t.Cleanup(func() { _ = knows.Close() })
	require.Eventually(t, func() bool {
		replicas, err := knows.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && master.client().Wait(t.Context(), 1, time.Second).Val() == 1
	}, 30*time.Second, 100*time.Millisecond)
	for name, l := range limiters {
		require.Eventually(t, func() bool {
			d, err := l.Take(t.Context(), name, 10)
			if errors.Is(err, ratelimit.ErrUnanswered) { // the cost may be charged, and then the next call is denied
				assert.NoError(t, master.client().Del(t.Context(), l.space.key(name)).Err())
			}
			return err == nil && d.Allowed
		}, 20*time.Second, 10*time.Millisecond, name)
	}
	require.EqualValues(t, 1, master.client().Wait(t.Context(), 1, 10*time.Second).Val())

	master.kill()
	killed := time.Now()
	for name, l := range limiters {
		for {
			var d ratelimit.Decision
			err := promptly(t, func() (err error) { d, err = l.Take(t.Context(), name, 10); return err })
			if err == nil {
				assert.False(t, d.Allowed, "%s: what was replicated is spent", name)
				assert.Equal(t, 0, d.Remaining, name)
				break
			}
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			require.Less(t, time.Since(killed), time.Minute)
			time.Sleep(20 * time.Millisecond)
		}
	}
	t.Logf("back after %v", time.Since(killed))
	require.NoError(t, limiters[fiveLimits()[0].Name].Reset(t.Context(), fiveLimits()[0].Name))
	assert.True(t, limiters[fiveLimits()[0].Name].Allow(fiveLimits()[0].Name, 10))
}
