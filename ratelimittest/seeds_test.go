package ratelimittest_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

var (
	firstSeed = flag.Uint64("first", 1, "the first seed of TestManySeeds")
	lastSeed  = flag.Uint64("last", testsize.Of(uint64(0), 200), "the last seed of TestManySeeds; 0 skips it")
	waits     = flag.Bool("waits", false, "TestManySeeds waits too, in real time")
)

// The suite must not report a fault of a right limiter under any seed. A long run is
//
//	go test ./ratelimittest -run TestManySeeds -last 10000 -timeout 0
func TestManySeeds(t *testing.T) {
	if *lastSeed == 0 {
		t.Skip("takes minutes: set -last")
	}
	config := ours()
	if !*waits {
		config.Skip = []string{"Wait"}
	}
	for config.Seed = *firstSeed; config.Seed <= *lastSeed; config.Seed++ {
		require.NoError(t, ratelimittest.Check(config))
		if config.Seed%100 == 0 {
			t.Logf("seed %d", config.Seed)
		}
	}
}
