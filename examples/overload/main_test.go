package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheCommittedPictureIsTheCommandsOutput(t *testing.T) {
	want, err := os.ReadFile("../../docs/overload.svg")
	require.NoError(t, err)
	assert.True(t, picture(1) == string(want), "docs/overload.svg is out of date: go run ./examples/overload -o docs/overload.svg")
}

func TestCommandPrintsATableAndDraws(t *testing.T) {
	if testing.Short() {
		t.Skip("plays all backends")
	}
	out := filepath.Join(t.TempDir(), "overload.svg")
	var text bytes.Buffer
	require.NoError(t, run(&text, out, 2))
	assert.Equal(t, 1+2*len(backends()), strings.Count(text.String(), "\n"))
	_, err := os.Stat(out)
	assert.NoError(t, err)
}

// The simulation has the results shown by the picture.
func TestPictureShowsWhatALimitIsFor(t *testing.T) {
	var late []float64 // the goodput while half the servers are down
	for _, l := range lanes(1) {
		sum := 0.0
		for _, p := range l.points[30:40] {
			sum += p.goodput
		}
		late = append(late, sum/10)
	}
	assert.Less(t, late[0], 20.0, "without a limit next to nothing is in time")
	assert.Less(t, late[1], 180.0, "a limit for all servers is too high for half of them")
	assert.Greater(t, late[2], 180.0, "an adaptive one finds out")
}
