package main

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// clock is moved by the soak. It records the highest reading ever, and its lowest value since the last check.
type clock struct {
	now  atomic.Int64
	high atomic.Int64
	low  int64 // stage.world guards it; only one goroutine moves the clock
}

func (c *clock) Now() time.Duration {
	now := c.now.Load()
	for high := c.high.Load(); now > high; high = c.high.Load() {
		if c.high.CompareAndSwap(high, now) {
			break
		}
	}
	return time.Duration(now)
}

// highest returns the highest reading that a goroutine may have had.
func (c *clock) highest() time.Duration { return time.Duration(max(c.high.Load(), c.now.Load())) }

// lowest returns the lowest reading since its last call.
func (c *clock) lowest() time.Duration {
	low := c.low
	c.low = c.now.Load()
	return time.Duration(low)
}

// tick moves the clock forward by some milliseconds, and sometimes by a minute.
// Sometimes it moves the clock back by up to a second, as happens when a clock is set.
func (c *clock) tick(rng *rand.Rand) {
	step := rng.Int64N(int64(5 * time.Millisecond))
	switch rng.IntN(500) {
	case 0:
		step = rng.Int64N(int64(time.Minute))
	case 1, 2:
		step = -rng.Int64N(int64(time.Second))
	}
	c.move(time.Duration(step))
}

func (c *clock) move(step time.Duration) { c.low = min(c.low, c.now.Add(int64(step))) }
