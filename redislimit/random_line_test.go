package redislimit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// slowly is a hook. It makes each script's round trip take some time, but not the client's greeting to the server:
// the client then holds a lock, and a bubble's time stands still while another goroutine waits for a lock.
type slowly time.Duration

func (s slowly) half() { time.Sleep(time.Duration(s) / 2) }

func (s slowly) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s slowly) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if _, script := cmd.(*command); script {
			defer s.half()
			s.half()
		}
		return next(ctx, cmd)
	}
}

func (s slowly) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if _, script := cmds[0].(*command); script {
			defer s.half()
			s.half()
		}
		return next(ctx, cmds)
	}
}

// realStore is a real server, with limiters on the bubble's time. This time passes only while all goroutines
// wait, and not during a call. A decision takes one call, or two if the server does not know the script.
func realStore(t *testing.T) linetest.Bubble {
	server, names := startServer(t), 0
	return linetest.Bubble{Calls: 2, Open: func(t *testing.T, takes time.Duration) func(ratelimit.Limit) linetest.Process {
		names++
		name := fmt.Sprintf("bubble%d", names)
		return func(limit ratelimit.Limit) linetest.Process {
			client := redis.NewClient(&redis.Options{Addr: server.addr})
			t.Cleanup(func() { _ = client.Close() }) // it is already closed if the process was killed
			l, err := New(client, limit, &Options{Name: name, Timeout: 10 * time.Second, Hooks: []redis.Hook{slowly(takes)}})
			require.NoError(t, err)
			l.store.clock, l.store.grace = func() int64 { return time.Now().UnixMicro() }, outlive
			return l
		}
	}}
}

// Far from the server, many callers hang up during their calls. The next callers take over the bookings of these calls.
func TestCallersThatHangUpDuringACallUseTheRateOnRedis(t *testing.T) {
	testsize.Sequential(t)
	s := realStore(t)
	for _, rate := range []int{20, 100} {
		l := linetest.Leavers{Rate: rate, Burst: 10, Processes: 1, Most: 1, Takes: 200 * time.Millisecond, For: time.Minute, Seed: testsize.Seed(1)}
		used := s.Leavers(t, l)
		t.Logf("%v: %.1f %% used", l, 100*used)
		assert.GreaterOrEqual(t, used, .93, l)
		assert.LessOrEqual(t, used, 1.03, l)
	}
}

// Each process has one or two callers in line. Most leave while they have a booking, and other processes book in the gaps.
func TestCallersOfMixedCostsThatHangUpUseTheRateOnRedis(t *testing.T) {
	testsize.Sequential(t)
	s := realStore(t)
	for _, c := range []struct {
		rate  int
		takes time.Duration
		least float64
	}{{20, 200 * time.Millisecond, .94}, {5, time.Millisecond, .9}} {
		l := linetest.Leavers{Rate: c.rate, Burst: 10, Processes: 5, Most: 8, Takes: c.takes, For: testsize.Of[time.Duration](2, 10) * time.Minute, Seed: testsize.Seed(1)}
		used := s.Leavers(t, l)
		t.Logf("%v: %.1f %% used", l, 100*used)
		assert.GreaterOrEqual(t, used, c.least, l)
		assert.LessOrEqual(t, used, 1.03, l)
	}
}

func TestRandomLinesOnRedisAreServedAsInMemory(t *testing.T) {
	realStore(t).Random(t, testsize.Of[uint64](10, 200))
}

func TestCallersInLineAreChargedAgainAfterAnotherProcessHasResetTheirKey(t *testing.T) {
	realStore(t).Reset(t)
}

// An operator changes the limit each minute while the reservations of three processes wait.
func TestAnHourOfReservationsThatWaitUsesTheLimitOnRedis(t *testing.T) {
	testsize.Extra(t)
	testsize.Sequential(t)
	realStore(t).Hour(t, testsize.Of(8, 60), .93)
}

// One of three processes is killed, and the others go on. The bookings of
// the killed process may be two minutes ahead, and delay nobody for longer.
func TestAnHourOfReservationsThatWaitUsesTheLimitOnRedisThoughAProcessIsKilled(t *testing.T) {
	testsize.Extra(t)
	testsize.Sequential(t)
	realStore(t).Killed(t, testsize.Of(9, 60), .9, func(p linetest.Process) { require.NoError(t, p.(*Limiter).store.user.Close()) })
}

func TestAProcessThatDiesBarsNobodyLongerThanASecond(t *testing.T) {
	realStore(t).Dies(t, func(p linetest.Process) { require.NoError(t, p.(*Limiter).store.user.Close()) })
}
