package main

import (
	"fmt"
	"strings"
)

// target is a goal: a bound on one of this library's figures, or on its ratio to redisBase's.
type target struct {
	what             string
	base, unit, row  string
	col              string
	multiple, atMost bool
	bound            float64
}

const oneBucket, eightLimits = "redislimit", "redislimit-8-limits"

var redisTargets = []target{
	{"one token bucket, allowed, 16 callers: server time", "RedisBusy", "server-µs/op", oneBucket, "allowed", true, true, 0.8},
	{"one token bucket, denied, 16 callers: server time", "RedisBusy", "server-µs/op", oneBucket, "denied", true, true, 0.65},
	{"eight limits, allowed, 16 callers: server time", "RedisBusy", "server-µs/op", eightLimits, "allowed", true, true, 5},
	{"eight limits, denied, 16 callers: server time", "RedisBusy", "server-µs/op", eightLimits, "denied", true, true, 5},
	{"one token bucket, allowed, a single caller: server time", "RedisServer", "server-µs/op", oneBucket, "allowed", true, true, 0.8},
	{"one token bucket, denied, a single caller: server time", "RedisServer", "server-µs/op", oneBucket, "denied", true, true, 0.65},
	{"eight limits, allowed, a single caller: server time", "RedisServer", "server-µs/op", eightLimits, "allowed", true, true, 5},
	{"eight limits, denied, a single caller: server time", "RedisServer", "server-µs/op", eightLimits, "denied", true, true, 5},
	{"128 goroutines: decisions a second", "RedisLoad", "decisions/s", oneBucket, "128 goroutines", true, false, 2.5},
	{"1 goroutine: decisions a second", "RedisLoad", "decisions/s", oneBucket, "1 goroutines", true, false, 0.9},
	{"one token bucket, allowed: allocations", "RedisServer", "allocs/op", oneBucket, "allowed", false, true, 15},
	{"one token bucket, denied: allocations", "RedisServer", "allocs/op", oneBucket, "denied", false, true, 15},
	{"a bucket's key with a short name: bytes", "RedisMemory", "B/key", oneBucket, "B/key", false, true, 136},
}

// targetsReport prints each target, the measured figure, and whether it meets the target.
func targetsReport(r results) string {
	var b strings.Builder
	b.WriteString("| target | measured | |\n|---|---:|---|\n")
	for _, t := range redisTargets {
		if got, ok := t.measured(r); ok {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", t.text(), t.figure(got), t.verdict(got))
		}
	}
	return b.String()
}

func (t target) measured(r results) (float64, bool) {
	var all table
	all.add(r, t.base, t.unit, "peer")
	ours, theirs := all.cells[[2]string{t.row, t.col}], all.cells[[2]string{redisBase, t.col}]
	if len(ours) == 0 || t.multiple && len(theirs) == 0 {
		return 0, false
	}
	if t.multiple {
		return ours.median() / theirs.median(), true
	}
	return ours.median(), true
}

func (t target) text() string {
	bound := "at least"
	if t.atMost {
		bound = "at most"
	}
	if !t.multiple {
		return fmt.Sprintf("%s, %s %g", t.what, bound, t.bound)
	}
	return fmt.Sprintf("%s, %s %g × %s's", t.what, bound, t.bound, redisBase)
}

func (t target) figure(got float64) string {
	if t.multiple {
		return fmt.Sprintf("%.2f", got)
	}
	return fmt.Sprintf("%.0f", got)
}

func (t target) verdict(got float64) string {
	if t.atMost && got <= t.bound || !t.atMost && got >= t.bound {
		return "met"
	}
	return "missed"
}
