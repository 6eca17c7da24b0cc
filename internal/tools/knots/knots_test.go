package main

import (
	_ "embed"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

//go:embed bounds.txt
var bounds string

// TestFilesThatUseEachOtherDoNotGrow, because a file can be read alone only if the files it uses do not use it.
func TestFilesThatUseEachOtherDoNotGrow(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	most := map[string]int{}
	for line := range strings.Lines(bounds) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		path, figure, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, err := strconv.Atoi(figure)
		require.NoError(t, err, line)
		most[path] = n
	}
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	knots, err := find(root)
	require.NoError(t, err)
	have := map[string]bool{}
	for _, k := range knots {
		bound, ok := most[k.path]
		if have[k.path] = true; !ok {
			bound = most["others"]
		}
		assert.LessOrEqual(t, len(k.files), bound, "%s: %s use each other", k.path, strings.Join(k.files, ", "))
	}
	delete(most, "others")
	for path, bound := range most {
		assert.True(t, have[path] || bound == 1, "%s has a bound and no circle: want 1", path)
	}
}

func TestTheLargestCircleOfAPackageIsFound(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":     "module example.org/m\n\ngo 1.26\n",
		"a.go":       "package m\n\ntype A[T any] struct{ b *B[T]; n int }\n\nfunc (a *A[T]) Next() *B[T] { return a.b }\n",
		"b.go":       "package m\n\ntype B[T any] struct{ n int }\n\nfunc (b *B[T]) Sum(c C[T]) int { return c.sum(b) + top }\n",
		"c.go":       "package m\n\ntype C[T any] struct{}\n\nfunc (C[T]) sum(b *B[T]) int { var a A[T]; return a.Next().n + a.n }\n",
		"low.go":     "package m\n\nconst top = 1\n",
		"high.go":    "package m\n\nvar all = A[int]{}\n",
		"two.go":     "package m\n\nfunc two() { pair() }\n",
		"pair.go":    "package m\n\nfunc pair() { two() }\n",
		"a_test.go":  "package m\n\nvar _ = top\n",
		"sub/one.go": "package sub\n\nvar One = 1\n",
	} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	knots, err := find(dir)
	require.NoError(t, err)
	require.Len(t, knots, 1)
	var b strings.Builder
	table(&b, knots)
	assert.Equal(t, "package  in a circle  of  files\n.        3            7   a.go b.go c.go\n", b.String())
	b.Reset()
	knots[0].list(&b)
	assert.Equal(t, "\na.go -> b.go: B\nb.go -> c.go: C C.sum\nc.go -> a.go: A A.Next n\nc.go -> b.go: B n\n", b.String())
}
