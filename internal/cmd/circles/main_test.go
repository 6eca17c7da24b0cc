package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// packageOf writes a package whose files hold what the map says.
func packageOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, code := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("package p\n"+code), 0o600))
	}
	return dir
}

func TestCirclesAreFound(t *testing.T) {
	for _, test := range []struct {
		name    string
		files   map[string]string
		circles [][]string
	}{
		{"a chain has none", map[string]string{
			"a.go": "type A struct{ b B }", "b.go": "type B struct{ c C }", "c.go": "type C int",
		}, nil},
		{"two files that name each other", map[string]string{
			"a.go": "func A() { B() }", "b.go": "func B() { A() }",
		}, [][]string{{"a.go", "b.go"}}},
		{"a circle by way of a method and a field", map[string]string{
			"a.go": "type A struct{ n int }", "b.go": "func (a A) B() int { return C(a) }", "c.go": "func C(a A) int { return a.B() + D }",
			"d.go": "const D = 1",
		}, [][]string{{"b.go", "c.go"}}},
		{"the largest first", map[string]string{
			"a.go": "func A() { B() }", "b.go": "func B() { A() }",
			"c.go": "func C() { D() }", "d.go": "func D() { E() }", "e.go": "func E() { C() }",
		}, [][]string{{"c.go", "d.go", "e.go"}, {"a.go", "b.go"}}},
		{"tests do not count", map[string]string{
			"a.go": "func A() {}", "b.go": "func B() { A() }", "a_test.go": "func x() { B() }",
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, err := load(packageOf(t, test.files))
			require.NoError(t, err)
			assert.Equal(t, test.circles, g.circles())
		})
	}
}

func TestOnlyLargeCirclesFail(t *testing.T) {
	g, err := load(packageOf(t, map[string]string{"a.go": "func A() { B() }", "b.go": "func B() { A() }"}))
	require.NoError(t, err)
	var out strings.Builder
	assert.False(t, report(&out, "p", g, 2))
	assert.Equal(t, "p: circle of 2 files: a.go b.go\np: 2 files, 2 references between files, largest circle 2\n", out.String())
	assert.True(t, report(&out, "p", g, 1))
}

func TestCodeThatDoesNotCompileIsAnError(t *testing.T) {
	_, err := load(packageOf(t, map[string]string{"a.go": "func A() { missing() }"}))
	require.Error(t, err)
}

// TestTheRepositoryHasNoLargeCircle holds the root package to
// what CONTRIBUTING.md promises.
func TestTheRepositoryHasNoLargeCircle(t *testing.T) {
	for _, folder := range []string{"../../.."} {
		g, err := load(folder)
		require.NoError(t, err)
		var out strings.Builder
		assert.False(t, report(&out, folder, g, 3), out.String())
	}
}
