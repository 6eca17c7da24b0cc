package pace_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/pace"
)

// A server without figures serves at a steady rate, refuses all requests for some minutes, and serves again. The
// client regains its pace within ten minutes, because an outage's refusals do not count as a measure of the rate.
func TestThePaceReturnsAfterAnOutageOfRefusals(t *testing.T) {
	rates := []ratelimit.Rate{ratelimit.PerMinute(6), ratelimit.PerSecond(1), ratelimit.PerSecond(20)}
	for _, rate := range rates[:testsize.Of(2, 3)] {
		for _, wait := range []time.Duration{0, time.Second, 5 * time.Second, 30 * time.Second} {
			for _, outage := range []time.Duration{10 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute} {
				t.Run(fmt.Sprintf("%v/wait %v/outage %v", rate, wait, outage), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						const start, back = 20 * time.Minute, 30 * time.Minute
						h := hour{
							server: ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(rate, max(1, rate.Units/10)), nil)),
							wait:   wait, down: start, up: start + outage,
						}
						h.run(t, start+outage+back)
						before, after := h.served(10*time.Minute, start), h.served(start+outage+10*time.Minute, start+outage+back)
						assert.GreaterOrEqual(t, after, .6*before, "requests served in a minute")
					})
				})
			}
		}
	}
}

// hour runs four callers, without a limit of their own, against a server that refuses.
type hour struct {
	server   *ratelimit.Keyed[string]
	wait     time.Duration // a refusal's wait
	down, up time.Duration // when the outage begins and ends

	mu sync.Mutex
	at []time.Duration // when requests were served
}

func (h *hour) run(t *testing.T, length time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	own := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))
	pc := pace.New("test", ratelimit.Reserver[string](own), pace.Options[string]{})
	began := time.Now()
	for range 4 {
		go func() {
			for ctx.Err() == nil {
				p := pc.Arrive(ctx, "")
				if pc.Await(p, "") != nil { // Await fails only at the end
					pc.Leave(p)
					return
				}
				time.Sleep(50 * time.Millisecond)
				pc.Learn(p, h.answer(time.Since(began)), time.Now())
				pc.Leave(p)
			}
		}()
	}
	<-ctx.Done()
	time.Sleep(time.Second) // until the last answers arrive
}

// answer returns the server's answer to a request at the instant at.
func (h *hour) answer(at time.Duration) pace.Advice {
	if at >= h.down && at < h.up || !h.server.Allow("", 1) {
		return pace.Advice{Answered: true, Refused: true, Wait: h.wait}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = append(h.at, at)
	return pace.Advice{Answered: true}
}

// served returns the mean number of requests served per minute between two instants.
func (h *hour) served(from, to time.Duration) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, at := range h.at {
		if at >= from && at < to {
			n++
		}
	}
	return float64(n) / (to - from).Minutes()
}
