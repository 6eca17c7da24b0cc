package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	const in = `== ./redislimit
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:2: a message\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: no server here\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:31: no server here\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Test":"TestD","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestD"}
{"Action":"output","Package":"p","Test":"TestG","Output":"    g_test.go:3: it bounds a time, and runs alone after all others\n"}
{"Action":"skip","Package":"p","Test":"TestG"}
{"Action":"output","Package":"none","Output":"?   \tnone\t[no test files]\n"}
{"Action":"output","Package":"p","Test":"BenchmarkH","Output":"BenchmarkH-2 1 7 ns/op\n"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
{"ImportPath":"r","Action":"build-output","Output":"r.go:1: no\n"}
{"Action":"output","Package":"q","Test":"TestE","Output":"--- FAIL: TestE\n"}
{"Action":"fail","Package":"q","Test":"TestE"}
{"Action":"output","Package":"q","Test":"TestF","Output":"panic: x\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\n"}
{"Action":"fail","Package":"q"}
{"Action":"skip","Package":"nothing"}`
	var out strings.Builder
	r, err := report(strings.NewReader(in), &out)
	require.NoError(t, err)
	r.skipped.print(&out)
	assert.Equal(t, `== ./redislimit
ok  	p	0.1s
BenchmarkH-2 1 7 ns/op
r.go:1: no
--- FAIL: TestE
FAIL	q
panic: x

skipped:
     1  p: it gives no reason
     2  p: no server here
`, out.String())
	assert.Equal(t, []string{"TestE", "TestF"}, r.failures)
	assert.Equal(t, map[string][]string{"p": {"TestG"}}, r.later)
}
