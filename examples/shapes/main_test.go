package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

func TestTheCommittedPictureIsTheCommandsOutput(t *testing.T) {
	want, err := os.ReadFile("../../docs/shapes.svg")
	require.NoError(t, err)
	out := filepath.Join(t.TempDir(), "shapes.svg")
	var text bytes.Buffer
	require.NoError(t, run(&text, out))
	assert.Equal(t, 3+len(lanes()), strings.Count(text.String(), "\n"), text.String())
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	assert.True(t, string(got) == string(want), "docs/shapes.svg is out of date: go run ./examples/shapes -o docs/shapes.svg")
}

// The captions are true.
func TestCaptionsAreTrue(t *testing.T) {
	traces := map[ratelimit.Algorithm]trace{}
	for _, l := range lanes() {
		tr, err := send(l.limit, arrivals())
		require.NoError(t, err)
		assert.Equal(t, len(arrivals()), len(tr.left)+len(tr.denied), "%s: each request is passed or denied", l.name)
		traces[l.limit.Algorithm] = tr
	}
	assert.LessOrEqual(t, traces[ratelimit.AlgorithmTokenBucket].mostEver, capacity+40, "burst + rate·t")
	assert.Equal(t, capacity, traces[ratelimit.AlgorithmSlidingLog].mostEver)
	assert.Greater(t, traces[ratelimit.AlgorithmFixedWindow].mostEver, capacity)
	assert.Greater(t, traces[ratelimit.AlgorithmSlidingCounter].mostEver, capacity, "an estimate, and at times above the log")
	assert.Less(t, len(traces[ratelimit.AlgorithmSlidingCounter].left), len(traces[ratelimit.AlgorithmSlidingLog].left), "and at times below")

	leaky := traces[ratelimit.AlgorithmLeakyBucket].left
	for i := 1; i < len(leaky); i++ {
		assert.GreaterOrEqual(t, leaky[i]-leaky[i-1], time.Second/10, "a leaky bucket lets out evenly")
	}
}

func TestMostWithin(t *testing.T) {
	at := []time.Duration{0, 1, 2, 10, 11, 12, 13}
	assert.Equal(t, 4, mostWithin(at, 4))
	assert.Equal(t, 3, mostWithin(at, 3), "the end of the span is left out")
	assert.Equal(t, 0, mostWithin(nil, 3))
}
