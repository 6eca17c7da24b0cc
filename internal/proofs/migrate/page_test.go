package migrate

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var code = regexp.MustCompile("`([^`]+)`")

// TestTheCallsOfThePageAreCompiled compares docs/migrate.md's tables of calls
// with this package: each call must occur literally in one of its tests.
func TestTheCallsOfThePageAreCompiled(t *testing.T) {
	var tests strings.Builder
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		tests.Write(text)
	}
	page, err := os.ReadFile("../../../docs/migrate.md")
	require.NoError(t, err)
	calls, inside := 0, false
	for line := range strings.Lines(string(page)) {
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case strings.HasSuffix(strings.TrimSpace(line), "| ratelimit |"):
			inside = true
		case inside:
			for _, m := range code.FindAllStringSubmatch(line, -1) {
				calls++
				assert.True(t, strings.Contains(tests.String(), m[1]), "no test has %s", m[1])
			}
		}
	}
	assert.Greater(t, calls, 50)
}
