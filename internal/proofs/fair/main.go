// Fair compares three ways to serve 50 greedy tenants and a modest one: one shared bucket,
// a bucket per tenant, and package fair. It prints the results, and draws docs/fair.svg:
//
//	go -C internal/proofs run ./fair -o ../../docs/fair.svg
package main

import (
	"container/heap"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"text/tabwriter"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func main() {
	out := flag.String("o", "", "`file` for the picture; none if empty")
	seed := flag.Uint64("seed", 1, "of the random calls")
	flag.Parse()
	if err := run(os.Stdout, *out, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "fair:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, out string, seed uint64) error {
	lanes := play(seed)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "limiter\tmodest tenant's calls denied while all poll\tspent of the rate\tspent while 40 of the 50 pause")
	for _, l := range lanes {
		fmt.Fprintf(t, "%s\t%.1f %%\t%.1f %%\t%.1f %%\n", l.name, 100*l.denied(), 100*l.spent(0, length), 100*l.spent(phase, 2*phase))
	}
	if err := t.Flush(); err != nil || out == "" {
		return err
	}
	return os.WriteFile(out, []byte(picture(lanes)), 0o666)
}

// The 50 greedy tenants poll about every 10 ms. In the second phase
// 40 of them pause. The modest tenant always requests half its share.
const (
	rate    = 1000 // units a second
	burst   = 1000
	greedy  = 50
	pausing = 40
	modest  = greedy // the modest tenant's key

	warmUp = 10 * time.Second
	phase  = 20 * time.Second
	length = 3 * phase
	bin    = time.Second
)

// lane has one limiter's results, in each bin.
type lane struct {
	name, class    string
	granted        [length / bin]int // to all tenants
	wanted, served [length / bin]int // by the modest tenant
}

func (l *lane) spent(from, to time.Duration) float64 {
	sum := 0
	for _, n := range l.granted[from/bin : to/bin] {
		sum += n
	}
	return float64(sum) / (rate * (to - from).Seconds())
}

// denied returns the denied share of the modest tenant's calls while all others polled.
func (l *lane) denied() float64 {
	wanted, served := 0, 0
	for i := range l.wanted {
		if at := time.Duration(i) * bin; at < phase || at >= 2*phase {
			wanted, served = wanted+l.wanted[i], served+l.served[i]
		}
	}
	return 1 - float64(served)/float64(wanted)
}

func play(seed uint64) []*lane {
	clock := new(ratelimittest.Clock)
	opts := &ratelimit.Options[int]{Clock: clock}
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(rate), burst)
	shared := ratelimit.Must(ratelimit.New(limit, opts))
	each := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.Per(rate, (greedy+1)*time.Second), burst/(greedy+1)), opts))
	fairly := ratelimit.Must(fair.New(limit, &fair.Options[int]{Clock: clock}))
	lanes := []*lane{{name: "fair", class: "a"}, {name: "a bucket for each", class: "c"}, {name: "a shared bucket", class: "b"}}
	for i, allow := range []func(key int) bool{
		func(key int) bool { return fairly.Allow(key, 1) },
		func(key int) bool { return each.Allow(key, 1) },
		func(int) bool { return shared.Allow(0, 1) },
	} {
		clock.Set(0)
		lanes[i].play(seed, clock, allow)
	}
	return lanes
}

// play makes all tenants' calls in the order of time. The first seconds only warm up. Each lane gets the same calls.
func (l *lane) play(seed uint64, clock *ratelimittest.Clock, allow func(key int) bool) {
	r := rand.New(rand.NewPCG(seed, 1))
	pause := func(key int) time.Duration {
		if key == modest {
			return 1 + time.Duration(r.ExpFloat64()*float64(2*(greedy+1)*time.Second)/rate)
		}
		return time.Duration((0.5 + r.Float64()) * 10e6)
	}
	var calls calls
	for key := range greedy + 1 {
		heap.Push(&calls, call{pause(key), key})
	}
	for calls[0].at < warmUp+length {
		c := calls[0]
		calls[0].at += pause(c.key)
		heap.Fix(&calls, 0)
		clock.Set(c.at)
		at := c.at - warmUp
		if c.key < pausing && at >= phase && at < 2*phase {
			continue
		}
		ok := allow(c.key)
		if at < 0 {
			continue
		}
		if c.key == modest {
			l.wanted[at/bin]++
		}
		if ok {
			l.granted[at/bin]++
			if c.key == modest {
				l.served[at/bin]++
			}
		}
	}
}

type call struct {
	at  time.Duration
	key int
}

type calls []call

func (c calls) Len() int           { return len(c) }
func (c calls) Less(i, j int) bool { return c[i].at < c[j].at }
func (c calls) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *calls) Push(x any)        { *c = append(*c, x.(call)) }
func (c *calls) Pop() any          { panic("calls never end") }
