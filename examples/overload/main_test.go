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

	"github.com/weir-go/ratelimit/internal/overload"
)

func TestCommittedPictureIsWhatTheCommandDraws(t *testing.T) {
	want, err := os.ReadFile("../../docs/overload.svg")
	require.NoError(t, err)
	assert.True(t, picture(1) == string(want), "docs/overload.svg is out of date: go run ./examples/overload")
}

func TestCommandPrintsATableAndDraws(t *testing.T) {
	if testing.Short() {
		t.Skip("plays all scenarios")
	}
	out := filepath.Join(t.TempDir(), "overload.svg")
	var text bytes.Buffer
	require.NoError(t, run(&text, out, 2))
	assert.Equal(t, 2+5*len(overload.Scenarios()), strings.Count(text.String(), "\n"))
	_, err := os.Stat(out)
	assert.NoError(t, err)
}

// What the picture shows is what happens.
func TestPictureShowsWhatALimitIsFor(t *testing.T) {
	var at40 []float64
	for _, l := range lanes(1) {
		at40 = append(at40, l.run.Goodput(30*time.Second, 40*time.Second))
	}
	assert.Less(t, at40[0], 20.0, "without a limit next to nothing is in time")
	assert.Less(t, at40[1], 180.0, "a limit for all servers is too high for half of them")
	assert.Greater(t, at40[2], 180.0, "an adaptive one finds out")
}
