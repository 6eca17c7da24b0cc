package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
)

// The workers run as processes of the test's program. With -redis, the program runs the example.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-redis" {
		main()
		return
	}
	os.Exit(m.Run())
}

// most returns the maximum number of jobs that a tenant had at the same time. For "" it counts the jobs of all tenants.
func most(lines []string, tenant string) (most int) {
	now := 0
	for _, line := range lines {
		what, of, _ := strings.Cut(line, " ")
		if tenant != "" && of != tenant {
			continue
		}
		if what == "begin" {
			now++
		} else {
			now--
		}
		most = max(most, now)
	}
	return most
}

func TestAFleetRunsTenJobsAndThreeOfATenant(t *testing.T) {
	s := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = client.Close() })
	slots, err := newSlots(client, time.Minute)
	require.NoError(t, err)
	var tenants []string
	for _, tenant := range []string{"a", "b", "c", "d", "e"} {
		tenants = append(tenants, slices.Repeat([]string{tenant}, 6)...)
	}
	var out bytes.Buffer
	require.NoError(t, work(t.Context(), slots, tenants, 100*time.Millisecond, &out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2*len(tenants))
	assert.LessOrEqual(t, most(lines, ""), inAll)
	for _, tenant := range []string{"a", "b", "c", "d", "e"} {
		assert.LessOrEqual(t, most(lines, tenant), perTenant)
	}
	assert.Zero(t, slots.Stats().InFlight)
}

func TestTheSlotsOfAKilledWorkerComeBack(t *testing.T) {
	s := redistest.Start(t)
	worker := exec.Command(os.Args[0], "-redis", s.Addr, "-hold", "2s", "-job", "1h", "acme", "acme", "acme")
	worker.Stderr = os.Stderr
	lines, err := worker.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, worker.Start())
	t.Cleanup(func() { _ = worker.Process.Kill() })
	scanner := bufio.NewScanner(lines)
	for range perTenant {
		require.True(t, scanner.Scan())
		require.Equal(t, "begin acme", scanner.Text())
	}
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = client.Close() })
	slots, err := newSlots(client, time.Minute)
	require.NoError(t, err)
	_, err = slots.TryAcquire(t.Context(), "acme", 1)
	require.ErrorIs(t, err, ratelimit.ErrLimited, "the worker's jobs go on, beyond Hold")
	other, err := slots.TryAcquire(t.Context(), "globex", 1)
	require.NoError(t, err, "of another tenant there is room")
	require.NoError(t, other.Release(t.Context()))
	require.NoError(t, worker.Process.Kill())
	_ = worker.Wait()
	permit, err := slots.Acquire(t.Context(), "acme", perTenant)
	require.NoError(t, err, "they lapse")
	require.NoError(t, permit.Release(t.Context()))
}
