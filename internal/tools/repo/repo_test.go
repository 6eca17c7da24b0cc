package repo

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

const root = "../../.."

// uses returns the modules of the given packages, without their tests, and of all packages they import.
func uses(t *testing.T, dir string, packages ...string) []string {
	t.Helper()
	out, err := Run(filepath.Join(root, dir), nil, "go", append([]string{"list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}"}, packages...)...)
	require.NoError(t, err)
	return slices.Compact(slices.Sorted(strings.FieldsSeq(out)))
}

// shipped lists a module's packages for users. It leaves out packages for tests, such as those in internal/dev.
func shipped(t *testing.T, dir string) []string {
	t.Helper()
	out, err := Run(filepath.Join(root, dir), nil, "go", "list", "./...")
	require.NoError(t, err)
	packages := strings.Fields(out)
	return slices.DeleteFunc(packages, func(p string) bool { return strings.Contains(p, "/internal/dev/") })
}

// TestContributingListsWhatEachModuleRequires compares the table of modules in CONTRIBUTING.md with the go.mod files.
func TestContributingListsWhatEachModuleRequires(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	all, err := Modules(root)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n| module | requires | why |\n|---|---|---|\n")
	require.True(t, found, "CONTRIBUTING.md has no table of modules")
	table, _, _ = strings.Cut(table, "\n\n")
	listed := make(map[string]string)
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		require.Len(t, cells, 5, line)
		listed[strings.Trim(cells[1], " `")] = strings.TrimSpace(cells[2])
	}
	for _, m := range all {
		name := m.Dir
		if name == "." {
			name = path.Base(m.Path())
		}
		requires, found := listed[name]
		delete(listed, name)
		if !assert.True(t, found, "%s is not in the table", name) || !m.Published() {
			continue
		}
		used := uses(t, m.Dir, shipped(t, m.Dir)...)
		var want []string
		for _, r := range m.Mod.Require {
			if !r.Indirect && slices.Contains(used, r.Mod.Path) {
				want = append(want, strings.TrimPrefix(r.Mod.Path, all[0].Path()+"/"))
			}
		}
		slices.Sort(want)
		assert.Equal(t, strings.Join(want, ", "), requires, "what %s requires without its tests", name)
	}
	assert.Empty(t, listed, "these are in the table, and are no modules")
}

// TestMetricsNeedTheirClientOnly: if a program exports metrics of a limiter in
// memory, it gets only the root module, the client and the client's requirements.
func TestMetricsNeedTheirClientOnly(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	const library = "github.com/weir-go/ratelimit"
	for dir, client := range map[string][]string{
		"promlimit": {"github.com/prometheus/client_golang/prometheus"},
		"otellimit": {"go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/attribute"},
	} {
		want := append(uses(t, dir, append(client, library)...), library+"/"+dir)
		for _, used := range uses(t, dir, "./...") {
			assert.Contains(t, want, used, dir)
		}
	}
}

// TestNoLargeFileIsCommitted runs scripts/precommit as git does.
func TestNoLargeFileIsCommitted(t *testing.T) {
	script, err := filepath.Abs(filepath.Join(root, "scripts/precommit"))
	require.NoError(t, err)
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		_, err := Run(dir, nil, "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"}, args...)...)
		require.NoError(t, err)
	}
	write := func(name string, size int) {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, make([]byte, size), 0o644))
	}
	refused := func(names ...string) {
		t.Helper()
		out, err := exec.Command("bash", "-c", `cd "$1" && exec "$2"`, "sh", dir, script).CombinedOutput()
		if len(names) == 0 {
			assert.NoError(t, err, string(out))
		} else {
			assert.Error(t, err)
		}
		for _, name := range names {
			assert.Contains(t, string(out), name+" (1048577 bytes)\n")
		}
		assert.Equal(t, len(names), strings.Count(string(out), " bytes)\n"), string(out))
	}
	git("init", "-q")
	refused() // there is no commit yet
	write("small", 1<<20)
	write("not added", 1<<20+1)
	git("add", "small")
	refused()
	write("two words/a program", 1<<20+1)
	write("a\nline", 1<<20+1)
	write("*", 1<<20+1)
	git("--literal-pathspecs", "add", "two words/a program", "a\nline", "*")
	refused("two words/a program", "a\nline", "*")

	write("two words/a program", 1) // the staged version is still large
	refused("two words/a program", "a\nline", "*")

	git("commit", "-q", "-m", "large")
	refused() // nothing is staged
	_, err = Run(dir, nil, script, "-all")
	assert.ErrorContains(t, err, "two words/a program (1048577 bytes)")

	git("mv", "small", "renamed")
	git("rm", "-q", "a\nline")
	refused()
	git("mv", "two words/a program", "moved away")
	refused("moved away")
}
