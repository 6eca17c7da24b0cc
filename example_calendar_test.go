package ratelimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// A plan of 1000 calls a month, billed on the 15th of the customer's zone.
func ExampleCalendar() {
	var clock ratelimittest.Clock // in production leave Options.Clock out
	clock.SetWall(time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC))

	quota := ratelimit.Calendar(1000, ratelimit.Month("Europe/Berlin", 15))
	calls, err := ratelimit.New(quota, &ratelimit.Options[string]{Clock: &clock})
	if err != nil {
		panic(err)
	}
	d, _ := calls.Take(context.Background(), "acme", 1000)
	fmt.Println(d.Limit, "leaves", d.Remaining)

	d, _ = calls.Take(context.Background(), "acme", 1)
	_, ends := quota.Period.Window(clock.Wall())
	fmt.Println("more in", d.RetryAfter, "on", ends.Format("January 2 15:04 MST"))

	clock.Advance(d.RetryAfter)
	fmt.Println(calls.Allow("acme", 1))
	// Output:
	// calendar 1000/month Europe/Berlin from 15 leaves 0
	// more in 107h0m0s on March 15 00:00 CET
	// true
}
