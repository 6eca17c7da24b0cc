package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const output = `date: 2026-11-21
go: go1.26.8
cpu: Any CPU
BenchmarkPeers/work=hot/peer=ratelimit-2  	100	  40.0 ns/op	  0 B/op
BenchmarkPeers/work=hot/peer=other-2      	100	  90.0 ns/op	  0 B/op
BenchmarkMemory/peer=ratelimit-2          	100	 200.0 B/key
BenchmarkPeers/work=hot/peer=ratelimit-2  	100	  60.0 ns/op	  0 B/op
BenchmarkPeers/work=hot/peer=other-2      	100	 110.0 ns/op	  0 B/op
BenchmarkMemory/peer=ratelimit-2          	100	 240.0 B/key
BenchmarkPeers/work=hot/peer=ratelimit-2  	100	 900.0 ns/op	  0 B/op
BenchmarkPeers/work=hot/peer=other-2      	100	 120.0 ns/op	  0 B/op
BenchmarkMemory/peer=ratelimit-2          	100	 220.0 B/key
`

const wantReport = `### Peers

Any CPU, go1.26.8, 2026-11-21

Medians, in ns per decision:

| | hot | B/key |
|---|---:|---:|
| ratelimit | 60 | 220 |
| other | 110 |  |

As multiples of ours:

| | hot | B/key |
|---|---:|---:|
| ratelimit | 1.00 | 1.00 |
| other | 1.83 |  |
`

func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.txt")
	require.NoError(t, os.WriteFile(file, []byte(output), 0o666))
	r, err := read(file)
	require.NoError(t, err)
	assert.Equal(t, wantReport, peersReport(r), "one outlier does not move a median, and cells without samples stay empty")
}

func TestMedianOfAnEvenNumberIsBetweenTheMiddleTwo(t *testing.T) {
	assert.Equal(t, 2.5, samples{4, 1, 3, 2}.median())
}

func TestUnknownSuite(t *testing.T) {
	err := run([]string{"everything"}, t.TempDir(), t.TempDir(), "1x", 0)
	assert.ErrorContains(t, err, `"everything"`)
}

func TestCommittedPictureIsDrawnFromTheCommittedOutput(t *testing.T) {
	r, err := read("../../results/scale.txt")
	require.NoError(t, err)
	want, err := os.ReadFile("../../../../../docs/scale.svg")
	require.NoError(t, err)
	assert.True(t, drawScale(r) == string(want), "docs/scale.svg is out of date: go run ./cmd/table -suite scale -count 0")
}

func TestGridLiesRoundTheMedians(t *testing.T) {
	assert.Equal(t, []float64{50, 100, 200, 500}, steps(70, 201))
	assert.Equal(t, []float64{20, 50}, steps(20, 50), "medians on the grid need no further line")
}

func TestHeadingsSpellOutTheNumberOfKeys(t *testing.T) {
	for col, want := range map[string]string{
		"hot":                    "hot",
		"1 allow serial":         "1 key allow serial",
		"10000 allow parallel":   "10,000 keys allow parallel",
		"65536 full":             "65,536 keys full",
		"1000000":                "1 million keys",
		"10k-parallel and so on": "10k-parallel and so on",
	} {
		assert.Equal(t, want, heading(col))
	}
}

const grpcOutput = `date: 2026-11-21
go: go1.26.8
cpu: Any CPU
BenchmarkGRPC/call=direct/peer=grpclimit-address-2            	100	  240 ns/op	  1 allocs/op
BenchmarkGRPC/call=direct/peer=go-grpc-middleware-address-2   	100	  120 ns/op	  0 allocs/op
BenchmarkGRPC/call=loopback/peer=bare-2                       	100	  40000 ns/op	  136 allocs/op
BenchmarkGRPC/call=loopback/peer=grpclimit-address-2          	100	  44000 ns/op	  139 allocs/op
BenchmarkGRPC/call=loopback/peer=go-grpc-middleware-address-2 	100	  44000 ns/op	  138 allocs/op
`

func TestGRPCReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.txt")
	require.NoError(t, os.WriteFile(file, []byte(grpcOutput), 0o666))
	r, err := read(file)
	require.NoError(t, err)
	report := grpcReport(r)
	for _, want := range []string{
		"| | direct | loopback |",
		"| grpclimit-address | 240 | 44000 |",
		"| bare |  | 40000 |",
		"| grpclimit-address | 2.00 | 1.00 |",
		"| grpclimit-address | 1 | 139 |",
	} {
		assert.Contains(t, report, want)
	}
}

const redisOutput = `date: 2026-11-21
go: go1.26.8
cpu: Any CPU
BenchmarkRedisServer/mix=allowed/peer=redislimit-2  	100	  5.62 server-µs/op	  16 allocs/op
BenchmarkRedisServer/mix=allowed/peer=redis_rate-2  	100	  8.00 server-µs/op	  22 allocs/op
BenchmarkRedisLoad/goroutines=128/peer=redislimit-2 	100	  90000 decisions/s	  1500 p50-µs
BenchmarkRedisLoad/goroutines=128/peer=redis_rate-2 	100	  30000 decisions/s	  4500 p50-µs
`

func TestRedisReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.txt")
	require.NoError(t, os.WriteFile(file, []byte(redisOutput), 0o666))
	r, err := read(file)
	require.NoError(t, err)
	report := redisReport(r)
	for _, want := range []string{
		"| | allowed |\n|---|---:|\n| redislimit | 5.6 |\n| redis_rate | 8.0 |",
		"| redislimit | 0.70 |",
		"| | 128 goroutines |\n|---|---:|\n| redislimit | 90000 |\n| redis_rate | 30000 |",
		"| redislimit | 3.00 |",
		"| | allowed |\n|---|---:|\n| redislimit | 16 |\n| redis_rate | 22 |",
		"| one token bucket, allowed, a single caller: server time, at most 0.8 × redis_rate's | 0.70 | met |",
		"| 128 goroutines: decisions a second, at least 2.5 × redis_rate's | 3.00 | met |",
		"| one token bucket, allowed: allocations, at most 15 | 16 | missed |",
	} {
		assert.Contains(t, report, want)
	}
	assert.NotContains(t, report, "bytes, at most", "what was not measured is not judged")
}
