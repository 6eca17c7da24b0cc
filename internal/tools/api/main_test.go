package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func write(t *testing.T, file, text string) {
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
}

func TestTheFileHasWhatOthersCanImport(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/go.mod", "module m\n")
	write(t, dir+"/m.go", `package m

type List[K comparable, V any] struct {
	First, Last K
	hidden      int
}

func (l *List[K, V]) Add(k K, v V) (old V, found bool) { return }
func (l *List[K, V]) grow()                            {}

type shy struct{}

func (shy) Seen() {}

type Reader interface {
	Read(p []byte) (int, error)
}

const A, b Kind = 1, 2

type Kind byte

type Other = Kind

var Err error

func New(
	n int,
) *List[string, int] { return nil }
`)
	write(t, dir+"/internal/shared/s.go", "package shared\n\nfunc Used() {}\n")
	write(t, dir+"/internal/own/o.go", "package own\n\nfunc Unseen() {}\n")
	write(t, dir+"/cmd/main.go", "package main\n\nfunc Exported() {}\n")
	write(t, dir+"/nested/go.mod", "module m/nested\n")
	write(t, dir+"/nested/n.go", "package nested\n\nimport _ \"m/internal/shared\"\n\nfunc F() {}\n")
	write(t, dir+"/internal/proofs/go.mod", "module m/internal/proofs\n")
	write(t, dir+"/internal/proofs/p.go", "package proofs\n\nimport _ \"m/internal/own\"\n\nfunc F() {}\n")
	lines, err := describe(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{
		"m/internal/shared: func Used()",
		"m/nested: func F()",
		"m: const A Kind",
		"m: func (*List[K, V]) Add(k K, v V) (old V, found bool)",
		"m: func New( n int, ) *List[string, int]",
		"m: type Kind byte",
		"m: type List struct, First K",
		"m: type List struct, Last K",
		"m: type List[K comparable, V any] struct",
		"m: type Other = Kind",
		"m: type Reader interface",
		"m: type Reader interface, Read(p []byte) (int, error)",
		"m: var Err error",
	}, lines)
}

func TestWhatIsGoneAndWhatIsNewIsListed(t *testing.T) {
	assert.Equal(t, []string{"- b", "+ c"}, compare([]string{"a", "b"}, []string{"a", "c"}))
	assert.Empty(t, compare([]string{"a"}, []string{"a"}))
}
