package ratelimit_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// squeeze takes out what a document may change about code that it copies: indentation.
func squeeze(code string) string {
	var lines []string
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// compiled returns all Go code of the repository that is not the library's own: its
// examples, proofs and tests.
func compiled(t *testing.T) string {
	var code strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "examples") || strings.Contains(path, "proofs") {
			text, err := os.ReadFile(path)
			code.WriteString(squeeze(string(text)) + "\n")
			return err
		}
		return nil
	}))
	return code.String()
}

// TestCodeInDocumentsIsCompiled holds README.md and the documents to code that is
// compiled and run elsewhere, to the letter.
func TestCodeInDocumentsIsCompiled(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	modules, err := filepath.Glob("*/README.md")
	require.NoError(t, err)
	code := compiled(t)
	blocks := 0
	for _, document := range append(append(documents, modules...), "README.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, block := range goBlock.FindAllStringSubmatch(string(text), -1) {
			blocks++
			assert.True(t, strings.Contains(code, squeeze(block[1])), "%s has code that is not in any example or test:\n%s", document, block[1])
		}
	}
	assert.Positive(t, blocks)
}

// TestReadmeIsShort holds README.md to what a reader takes in within a minute.
func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(strings.Fields(string(text))), 1100)
}

var (
	anyCode = regexp.MustCompile("(?s)```.*?```|`[^`]*`")
	link    = regexp.MustCompile(`\]\(([^)#:]+)\)`)
)

// TestLinksInDocumentsLeadSomewhere checks links within the repository.
func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range link.FindAllStringSubmatch(anyCode.ReplaceAllString(string(text), ""), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(path), m[1]))
			assert.NoError(t, err, "a link in %s", path)
		}
		return err
	}))
}
