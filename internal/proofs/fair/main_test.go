package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheCommittedPictureIsTheCommandsOutput(t *testing.T) {
	want, err := os.ReadFile("../../../docs/fair.svg")
	require.NoError(t, err)
	out := filepath.Join(t.TempDir(), "fair.svg")
	var text bytes.Buffer
	require.NoError(t, run(&text, out, 1))
	assert.Equal(t, 4, strings.Count(text.String(), "\n"))
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	assert.True(t, string(got) == string(want), "docs/fair.svg is out of date: go -C internal/proofs run ./fair -o ../../docs/fair.svg")
}

// The picture's results are typical: a random seed has the same ones.
func TestOnlyFairServesTheModestTenantAndSpendsTheRate(t *testing.T) {
	seed := rand.Uint64()
	lanes := play(seed)
	fairly, each, shared := lanes[0], lanes[1], lanes[2]
	assert.Less(t, fairly.denied(), 0.05, "when those who have paused come back all at once, one call is denied now and then, seed %d", seed)
	back := int(2 * phase / bin)
	fairly.wanted[back], fairly.served[back] = 0, 0
	assert.Less(t, fairly.denied(), 0.005, "seed %d", seed)
	assert.Greater(t, fairly.spent(0, length), 0.995, "seed %d", seed)
	assert.Less(t, each.spent(phase, 2*phase), 0.3, "what 40 tenants leave is wasted, seed %d", seed)
	assert.Greater(t, shared.denied(), 0.7, "seed %d", seed)
}
