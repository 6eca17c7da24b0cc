package model

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// Stream is a request for a language model's streamed answer.
type Stream struct{ User, Team string }

// A gateway's caps, and its streams' hold.
const (
	StreamsOfUser = 8
	StreamsOfTeam = 30
	StreamHold    = time.Minute
)

// GatewayLayers returns a gateway's limits: the streams of a user and of a team, and their
// requests and tokens per minute. The function made returns a limiter for each limit.
func GatewayLayers(made func(limit ratelimit.Limit) ratelimit.Reserver[string]) []ratelimit.Layer[Stream] {
	layer := func(limit ratelimit.Limit, key func(Stream) string, one bool) ratelimit.Layer[Stream] {
		y := ratelimit.By(made(limit), func(r Stream) (string, error) { return key(r), nil })
		if one {
			y.Cost = func(Stream) int { return 1 }
		}
		return y
	}
	user, team := func(r Stream) string { return r.User }, func(r Stream) string { return r.Team }
	return []ratelimit.Layer[Stream]{
		layer(ratelimit.Concurrent(StreamsOfUser, StreamHold).Named("streams"), user, true),
		layer(ratelimit.Concurrent(StreamsOfTeam, StreamHold).Named("team"), team, true),
		layer(ratelimit.TokenBucket(ratelimit.PerMinute(6000), 200).Named("requests"), team, true),
		layer(ratelimit.TokenBucket(ratelimit.PerMinute(1_000_000), 1_000_000).Named("tokens"), team, false),
	}
}

// gatewayClient is a client requesting one stream after the other.
type gatewayClient struct {
	Stream
	process int
	res     *ratelimit.Reservation // its stream's reservation, nil while it waits
	end     time.Duration
	at      time.Duration // when it acts next
	index   int
}

// GatewayHour plays a team of six users with eight clients each, on a gateway's three processes. The
// third process is killed after a third of the time. Denied clients try again after RetryAfter, and a
// tenth of the clients leave in the middle of their stream. No cap may ever be exceeded. GatewayHour
// returns the team's share of its cap in use while clients wait, without the minute after the kill.
func GatewayHour(t testing.TB, clock Clock, span time.Duration, processes [3]ratelimit.Reserver[Stream]) (share float64) {
	g := &gateway{t: t, clock: clock, rng: rand.New(rand.NewPCG(70, 7)), processes: processes, begin: clock.Now(), users: map[string]int{}}
	for u := range 6 {
		for i := range 8 {
			c := &gatewayClient{Stream: Stream{fmt.Sprint("user", u), "team"}, process: (u + i) % 3, at: g.begin + time.Duration(g.rng.IntN(1000))*time.Millisecond}
			heap.Push(&g.events, c)
		}
	}
	for kill := g.begin + span/3; ; {
		c := g.events[0]
		if c.at >= g.begin+span {
			break
		}
		if g.killed == 0 && c.at >= kill {
			g.pass(kill)
			g.kill()
			continue
		}
		g.pass(c.at)
		g.event(c)
		heap.Fix(&g.events, c.index)
	}
	g.pass(g.begin + span)
	for _, c := range g.events {
		if c.res != nil {
			g.ends(c)
		}
	}
	require.Zero(t, g.inUse, "streams that have not ended")
	r, err := processes[0].Reserve(t.Context(), Stream{"another", "team"}, 1, 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, r.Cancel())
	return g.used / g.waited
}

type gateway struct {
	t         testing.TB
	clock     Clock
	rng       *rand.Rand
	processes [3]ratelimit.Reserver[Stream]
	events    gatewayEvents
	begin     time.Duration
	users     map[string]int // each user's streams
	inUse     int
	killed    time.Duration // when the process was killed; 0 before
	used      float64       // the seconds while clients wait, each times the used share of the cap
	waited    float64       // the seconds while clients wait
}

// pass moves the clock forward, and adds the cap's use until then.
func (g *gateway) pass(at time.Duration) {
	d := at - g.clock.Now()
	if waiting := len(g.events) - g.inUse; waiting > 0 && (g.killed == 0 || at > g.killed+StreamHold+10*time.Second) && at > g.begin+10*time.Second {
		g.used += float64(g.inUse) / StreamsOfTeam * d.Seconds()
		g.waited += d.Seconds()
	}
	g.clock.Advance(d)
}

// kill ends the third process. Its streams are neither settled nor extended, and its clients move to the other processes.
func (g *gateway) kill() {
	g.killed = g.clock.Now()
	for _, c := range g.events {
		if c.process != 2 {
			continue
		}
		if c.res != nil {
			c.res = nil
			g.inUse--
			g.users[c.User]--
		}
		c.process, c.at = g.rng.IntN(2), g.clock.Now()+time.Duration(500+g.rng.IntN(1000))*time.Millisecond
	}
	heap.Init(&g.events)
}

// event plays a client's next action.
func (g *gateway) event(c *gatewayClient) {
	now := g.clock.Now()
	switch {
	case c.res == nil:
		r, err := g.processes[c.process].Reserve(context.Background(), c.Stream, 1000, 0)
		require.NoError(g.t, err)
		if !r.Allowed {
			require.Positive(g.t, r.RetryAfter)
			require.LessOrEqual(g.t, r.RetryAfter, StreamHold)
			c.at = now + time.Duration(float64(r.RetryAfter)*(0.75+g.rng.Float64()/2)).Truncate(time.Microsecond)
			return
		}
		c.res, c.end = r, now+time.Duration(5000+g.rng.IntN(70_000))*time.Millisecond
		if g.rng.IntN(10) == 0 { // the client leaves
			c.end = now + time.Duration(g.rng.IntN(5000))*time.Millisecond
		}
		g.inUse++
		g.users[c.User]++
		require.LessOrEqual(g.t, g.inUse, StreamsOfTeam)
		require.LessOrEqual(g.t, g.users[c.User], StreamsOfUser)
	case now >= c.end:
		g.ends(c)
		c.at = now + time.Duration(g.rng.IntN(200))*time.Millisecond
		return
	default:
		require.NoError(g.t, c.res.Extend(context.Background()))
	}
	c.at = min(c.end, now+StreamHold/3)
}

// ends settles a stream.
func (g *gateway) ends(c *gatewayClient) {
	require.NoError(g.t, c.res.Settle(g.rng.IntN(2000)))
	c.res = nil
	g.inUse--
	g.users[c.User]--
}

// gatewayEvents is a heap of the clients by their next event.
type gatewayEvents []*gatewayClient

func (e gatewayEvents) Len() int           { return len(e) }
func (e gatewayEvents) Less(i, j int) bool { return e[i].at < e[j].at }
func (e gatewayEvents) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

func (e *gatewayEvents) Push(x any) {
	c := x.(*gatewayClient)
	c.index = len(*e)
	*e = append(*e, c)
}

func (e *gatewayEvents) Pop() any {
	c := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return c
}
