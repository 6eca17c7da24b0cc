package repo

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// near is how far a figure in the table may be from the measured one. The
// table only informs, so a change with a new file need not update it.
const near = 3

// TestContributingListsHowManyFilesADecisionRunsThrough checks the table
// of decisions. It counts the files with code that runs in one decision.
func TestContributingListsHowManyFilesADecisionRunsThrough(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	figures := filesOf(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "paths")
	_, err := Run(root, nil, "go", "build", "-cover", "-covermode=atomic", "-coverpkg=./...", "-o", program, "./internal/tools/repo/testdata/paths/main.go")
	require.NoError(t, err)
	_, err = Run(root, nil, program, dir)
	require.NoError(t, err)
	for name, decision := range map[string]string{
		"known": "`Allow` of a known key", "first": "`Allow` of a new key", "stack": "`Allow` of three layers", "http": "a denied HTTP request",
	} {
		figure, found := figures[decision]
		require.True(t, found, "%q is not in the table", decision)
		files := filesRun(t, filepath.Join(dir, name))
		assert.InDelta(t, len(files), figure, near, "%s runs through %v", decision, files)
		assert.Greater(t, len(files), 3, "nothing was measured")
	}
}

func TestContributingListsHowManyFilesADecisionOnRedisRunsThrough(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	path, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"))
	if err != nil && os.Getenv("CI") != "true" {
		t.Skip("apt-get install redis-server, or name a server by REDIS_SERVER")
	}
	require.NoError(t, err)
	dir := t.TempDir()
	server := exec.Command(path, "--port", "0", "--unixsocket", "socket", "--save", "", "--appendonly", "no")
	server.Dir = dir
	require.NoError(t, server.Start())
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait() // the server was killed
	}()
	program := filepath.Join(dir, "paths")
	const source = "../internal/tools/repo/testdata/paths/redis"
	_, err = Run(filepath.Join(root, "redislimit"), nil, "go", "build", "-cover", "-covermode=atomic",
		"-coverpkg=./...,github.com/weir-go/ratelimit/...,"+source, "-o", program, source+"/main.go")
	require.NoError(t, err)
	_, err = Run(dir, nil, program, dir, "socket")
	require.NoError(t, err)
	files := filesRun(t, dir)
	assert.InDelta(t, len(files), filesOf(t)["`Allow` on Redis"], near, "it runs through %v", files)
	assert.Greater(t, len(files), 3, "nothing was measured")
}

// filesOf returns the table of decisions in CONTRIBUTING.md.
func filesOf(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n| a decision | files | begins in |\n|---|---|---|\n")
	require.True(t, found, "CONTRIBUTING.md has no table of decisions")
	table, _, _ = strings.Cut(table, "\n\n")
	figures := map[string]int{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		require.Len(t, cells, 5, line)
		n, err := strconv.Atoi(strings.TrimSpace(cells[2]))
		require.NoError(t, err, line)
		figures[strings.TrimSpace(cells[1])] = n
		assert.FileExists(t, filepath.Join(root, strings.Trim(cells[3], " `")), line)
	}
	return figures
}

// filesRun returns the library's files with code that has run, according to the output of a program built with -cover.
func filesRun(t *testing.T, dir string) (files []string) {
	t.Helper()
	profile := filepath.Join(dir, "profile")
	_, err := Run(root, nil, "go", "tool", "covdata", "textfmt", "-i="+dir, "-o="+profile)
	require.NoError(t, err)
	text, err := os.ReadFile(profile)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		file, block, _ := strings.Cut(strings.TrimPrefix(line, "github.com/weir-go/ratelimit/"), ":")
		if strings.HasPrefix(line, "github.com/") && !strings.HasSuffix(strings.TrimSpace(block), " 0") {
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// TestTheMapOfContributingHasEachPackageAndNoFileThatIsGone reads the tables of files in
// CONTRIBUTING.md. Each file of a row must be in one of the row's packages, or at the root.
func TestTheMapOfContributingHasEachPackageAndNoFileThatIsGone(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	require.NoError(t, err)
	_, rooms, found := strings.Cut(string(text), "\n## Where things are\n")
	require.True(t, found)
	rooms, _, found = strings.Cut(rooms, "\nOne decision runs through")
	require.True(t, found)
	quoted := regexp.MustCompile("`([a-z_]+)(\\.go)?`")
	packages := map[string]bool{}
	for line := range strings.Lines(rooms) {
		var row []string
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			name := m[1] + m[2]
			if m[2] == "" {
				packages[name] = true
				row = append(row, name)
				continue
			}
			exists := func(dir string) bool {
				_, err := os.Stat(filepath.Join(root, dir, name))
				if err != nil {
					_, err = os.Stat(filepath.Join(root, "internal", dir, name))
				}
				return err == nil
			}
			assert.True(t, exists("") || slices.ContainsFunc(row, exists), "%s of %q does not exist", name, line)
		}
	}
	for _, parent := range []string{"", "internal"} {
		dirs, err := os.ReadDir(filepath.Join(root, parent))
		require.NoError(t, err)
		for _, d := range dirs {
			files, err := filepath.Glob(filepath.Join(root, parent, d.Name(), "*.go"))
			require.NoError(t, err)
			if len(files) > 0 {
				assert.True(t, packages[d.Name()], "%s is not in the map", d.Name())
			}
		}
	}
}
