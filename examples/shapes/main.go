// Shapes sends one bursty stream through five algorithms, and prints each
// one's admissions. It moves the clock itself. With -o it also draws them:
//
//	go run ./examples/shapes
//	go run ./examples/shapes -o docs/shapes.svg
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/weir-go/ratelimit"
)

func main() {
	out := flag.String("o", "", "`file` for a picture; none if empty")
	flag.Parse()
	if err := run(os.Stdout, *out); err != nil {
		fmt.Fprintln(os.Stderr, "shapes:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, out string) error {
	if err := table(w); err != nil || out == "" {
		return err
	}
	picture, err := picture()
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(picture), 0o666)
}

// table prints each algorithm's admissions.
func table(w io.Writer) error {
	at := arrivals()
	fmt.Fprintf(w, "%d requests in %v: bursts of %d a second, and pauses\n\n", len(at), at[len(at)-1].Round(time.Second), phases[1].perSecond)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "limit\tadmitted\tdenied\tmost in %v\t\n", window)
	for _, l := range lanes() {
		tr, err := send(l.limit, at)
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%v\t%d\t%d\t%d\t%s\n", l.limit, len(tr.left), len(tr.denied), tr.mostEver, l.note)
	}
	return t.Flush()
}

// All five limits hold a client to the same 10 requests a second, and none admits more than 40 at once.
const (
	capacity = 40
	window   = 4 * time.Second
	length   = 22 * time.Second // the time span of the picture
)

// lane is one algorithm: a limit, and its panel's caption.
type lane struct {
	limit      ratelimit.Limit
	name, note string
}

func lanes() []lane {
	return []lane{
		{ratelimit.TokenBucket(ratelimit.PerSecond(10), capacity), "Token bucket",
			"what was saved up goes at once, up to 40, then 10/s"},
		{ratelimit.LeakyBucket(ratelimit.PerSecond(10), capacity), "Leaky bucket",
			"up to 40 wait in a queue and leave evenly spaced; drawn as they leave"},
		{ratelimit.FixedWindow(ratelimit.Per(capacity, window)), "Fixed window",
			"40 per window (dashed: its start); a burst passes on both sides of its end"},
		{ratelimit.SlidingLog(ratelimit.Per(capacity, window)), "Sliding log",
			"never above 40 in any 4 s, at the price of remembering each request"},
		{ratelimit.SlidingCounter(ratelimit.Per(capacity, window)), "Sliding counter",
			"two counts stand in for the log, so it is a little above or below it"},
	}
}

// phase is a time with evenly spaced requests.
type phase struct {
	from, to  time.Duration
	perSecond time.Duration // requests a second, as a number
}

var phases = []phase{
	{0, 3200 * time.Millisecond, 5},                          // below the rate
	{3200 * time.Millisecond, 4800 * time.Millisecond, 50},   // a burst across the end of the first window
	{8400 * time.Millisecond, 14400 * time.Millisecond, 20},  // twice the rate, for longer than saved units last
	{16400 * time.Millisecond, 17600 * time.Millisecond, 50}, // a burst after a short rest
}

// arrivals returns the requests' instants of arrival, in order.
func arrivals() (at []time.Duration) {
	for _, p := range phases {
		n := (p.to - p.from) * p.perSecond / time.Second
		for i := range n {
			at = append(at, p.from+i*time.Second/p.perSecond)
		}
	}
	return at
}

// clock is a clock that stands still until it is set.
type clock struct{ now time.Duration }

func (c *clock) Now() time.Duration { return c.now }

// trace is the stream's result under one limit.
type trace struct {
	arrived  []time.Duration // when admitted requests arrived
	left     []time.Duration // when they left, later in a leaky bucket
	denied   []time.Duration
	anew     []time.Duration // when a fresh key was charged
	mostEver int             // the maximum number of requests passed on within a window's length
}

// send sends requests at the given instants through a new limiter.
func send(limit ratelimit.Limit, at []time.Duration) (tr trace, err error) {
	c := new(clock)
	l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: c})
	if err != nil {
		return trace{}, err
	}
	for _, c.now = range at {
		d, err := l.Take(context.Background(), "client", 1)
		if err != nil {
			return trace{}, err
		}
		tr.add(c.now, d)
	}
	tr.mostEver = mostWithin(tr.left, window)
	return tr, nil
}

func (tr *trace) add(now time.Duration, d ratelimit.Decision) {
	if !d.Allowed {
		tr.denied = append(tr.denied, now)
		return
	}
	tr.arrived = append(tr.arrived, now)
	tr.left = append(tr.left, now+d.Delay)
	if d.Remaining == capacity-1 {
		tr.anew = append(tr.anew, now)
	}
}

// mostWithin returns the maximum number of instants within a span of the
// given length. The span excludes its end. The instants must be in order.
func mostWithin(at []time.Duration, span time.Duration) (most int) {
	first := 0
	for i, t := range at {
		for at[first] <= t-span {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
