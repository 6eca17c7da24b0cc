package main

import (
	"fmt"
	"strings"
)

// redisTables are the report's parts about limiters in Redis.
var redisTables = []struct {
	title, base, unit string
	digits            int
	ratios            bool // whether ratios to redisBase are printed, too
}{
	{"The server's time for one decision while 16 callers keep it at work, µs", "RedisBusy", "server-µs/op", 1, true},
	{"The server's time for one decision with a single caller, µs", "RedisServer", "server-µs/op", 1, true},
	{"Decisions a second, by the number of goroutines", "RedisLoad", "decisions/s", 0, true},
	{"p50 as a caller sees it, µs", "RedisLoad", "p50-µs", 0, false},
	{"p99 as a caller sees it, µs", "RedisLoad", "p99-µs", 0, false},
	{"Decisions that failed, %", "RedisLoad", "failed-%", 2, false},
	{"Allocations for one decision, in the client", "RedisServer", "allocs/op", 0, false},
	{"Memory of one key, bytes (MEMORY USAGE)", "RedisMemory", "B/key", 0, false},
}

// The other rows are compared with redisBase.
const redisBase = "redis_rate"

func redisReport(r results) string {
	parts := []string{r.heading("Limiters in Redis")}
	for _, s := range redisTables {
		var t table
		t.add(r, s.base, s.unit, "peer")
		parts = append(parts, s.title+":\n", t.mediansTo(s.digits))
		if s.ratios {
			parts = append(parts, fmt.Sprintf("As multiples of %s's:\n", redisBase), t.ratios(redisBase))
		}
	}
	return strings.Join(append(parts, "Against the targets:\n", targetsReport(r)), "\n")
}
