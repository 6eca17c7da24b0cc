package main

import (
	_ "embed"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/txtar"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// bounds has the maximum of each figure for the repository. Figures
// should only fall: if a change makes a figure smaller, lower its bound.
//
//go:embed bounds.txt
var bounds string

func TestPublicNamesDoNotGrow(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	c, err := count("../../..")
	require.NoError(t, err)
	require.NoError(t, c.exempt(exemptions))
	var root figures
	for _, f := range c.packages {
		if f.path == "ratelimit" {
			root = f
		}
	}
	all := c.total()
	have := map[string]int{
		"names": all.names, "names that no interface demands": all.names - all.demanded, "names that nothing shows": all.unshown,
		"names of the root": root.names,
	}
	for line := range strings.Lines(bounds) {
		text, figure, _ := strings.Cut(strings.TrimSpace(line), ": ")
		most, err := strconv.Atoi(figure)
		require.NoError(t, err, line)
		n, ok := have[text]
		require.True(t, ok, line)
		delete(have, text)
		assert.LessOrEqual(t, n, most, text)
	}
	assert.Empty(t, have, "figures without a bound")
	if t.Failed() {
		var b strings.Builder
		c.table(&b)
		t.Log(b.String())
		for _, n := range c.names {
			if n.shown == nowhere {
				t.Log("nothing shows", n)
			}
		}
	}
}

func TestEachNameIsFoundWhereItIsShown(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/repository.txtar") // as a file, its go.mod would make testdata a module of this repository
	require.NoError(t, err)
	files, err := txtar.FS(archive)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, files))
	c, err := count(dir)
	require.NoError(t, err)
	got := map[string]string{}
	for _, n := range c.names {
		got[n.String()] = n.kind + " " + n.shown.String()
	}
	assert.Equal(t, map[string]string{
		"repository.New":            "func example",
		"repository.Limiter":        "type result",
		"repository.Limiter.Take":   "method example",
		"repository.Limiter.Peek":   "method page",
		"repository.Limiter.String": "method interface",
		"repository.Limiter.Drop":   "method NOWHERE",
		"repository.Taker":          "type package",
		"repository.Max":            "const page",
		"repository.Min":            "const NOWHERE",
		"repository.ErrGone":        "var NOWHERE",
		"other.Use":                 "func NOWHERE",
	}, got)
	assert.Equal(t, figures{path: "all", names: 11, demanded: 1, inside: 1, unshown: 4, words: c.total().words}, c.total())
	assert.Positive(t, c.total().words)

	require.NoError(t, c.exempt("# why\n\nrepository.Min: the other end of Max\n"))
	assert.Equal(t, 3, c.total().unshown)
	err = c.exempt("repository.Max: of use\nrepository.Drop: gone\nrepository.ErrGone:")
	assert.EqualError(t, err, "exemptions.txt: repository.Max is shown: page; repository.Drop is no public name; repository.ErrGone has no reason")
}
