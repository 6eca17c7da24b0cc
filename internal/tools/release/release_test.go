package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/tools/repo"
)

var day = time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)

// scratch makes a repository with this one's modules and changelog, and the given .ci/run.
func scratch(t *testing.T, ci string) string {
	t.Helper()
	dir := t.TempDir()
	all, err := repo.Modules("../../..")
	require.NoError(t, err)
	for _, m := range all {
		write(t, filepath.Join(dir, m.Dir, "go.mod"), read(t, filepath.Join("../../..", m.Dir, "go.mod")))
	}
	write(t, filepath.Join(dir, "CHANGELOG.md"), "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- a thing\n")
	write(t, filepath.Join(dir, ".ci/run"), ci)
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", "--template="}, {"config", "user.name", "a"}, {"config", "user.email", "a@b.example"}, {"add", "-A"}, {"commit", "-q", "-m", "all"},
	} {
		do(t, dir, args...)
	}
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

func do(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git(dir, args...)
	require.NoError(t, err)
	return strings.TrimSpace(out)
}

// state describes what a refused release must leave unchanged in a repository.
func state(t *testing.T, dir string) string {
	t.Helper()
	return do(t, dir, "rev-parse", "HEAD") + "\n" + do(t, dir, "tag", "--list") + "\n" + do(t, dir, "status", "--porcelain")
}

func TestARelease(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	dir := scratch(t, "echo checked; grep -c 'ratelimit.* v0.3.0' redislimit/go.mod; git tag --list")
	before := state(t, dir)

	var out bytes.Buffer
	require.NoError(t, run(dir, "v0.3.0", true, day, &out))
	assert.Equal(t, before, state(t, dir), "a dry run changes nothing")
	assert.Contains(t, out.String(), "would run .ci/run")
	assert.NotContains(t, out.String(), "checked")
	push := out.String()[strings.Index(out.String(), "    git push"):]
	assert.Contains(t, push, "git push --atomic origin main v0.3.0 connectlimit/v0.3.0 grpclimit/v0.3.0")

	out.Reset()
	require.NoError(t, run(dir, "v0.3.0", false, day, &out))
	assert.Contains(t, out.String(), "checked\n1\n", "CI runs on the release commit")
	assert.True(t, strings.HasSuffix(out.String(), push), "the dry run told the truth")
	assert.Empty(t, do(t, dir, "status", "--porcelain"))
	assert.Equal(t, "Release v0.3.0", do(t, dir, "log", "-1", "--format=%s"))
	assert.Equal(t, "2", do(t, dir, "rev-list", "--count", "main"))
	all, err := repo.Modules(dir)
	require.NoError(t, err)
	version, err := repo.Version(all)
	require.NoError(t, err)
	assert.Equal(t, "v0.3.0", version)
	var tags []string
	for _, m := range all {
		if m.Published() {
			tags = append(tags, m.Tag("v0.3.0"))
			assert.Equal(t, do(t, dir, "rev-parse", "main"), do(t, dir, "rev-parse", m.Tag("v0.3.0")), m.Dir)
		}
	}
	assert.ElementsMatch(t, tags, strings.Fields(do(t, dir, "tag", "--list")), "and no other tags")
	assert.Greater(t, len(tags), 5)
	assert.Equal(t, "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2031-02-03\n\n### Added\n\n- a thing\n", read(t, filepath.Join(dir, "CHANGELOG.md")))

	require.ErrorContains(t, run(dir, "v0.4.0", false, day, &out), "nothing that is not released")
	write(t, filepath.Join(dir, "CHANGELOG.md"), strings.Replace(read(t, filepath.Join(dir, "CHANGELOG.md")), "\n## [0.3.0]", "\n### Incompatible\n\n- another\n\n## [0.3.0]", 1))
	do(t, dir, "commit", "-qam", "change")
	for version, want := range map[string]string{
		"v0.3.0": "v0.3.0 exists", "v0.2.9": "older than the release v0.3.0", "v0.3.1": "takes a new minor version", "v1.0.0": "must not have",
	} {
		require.ErrorContains(t, run(dir, version, false, day, &out), want, version)
	}
	require.NoError(t, run(dir, "v0.4.0", true, day, &out))
}

func TestWhatIsNotReleased(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	first := scratch(t, "")
	for name, test := range map[string]struct {
		ci, version string
		spoil       func(t *testing.T, dir string)
		want        string
	}{
		"CI fails":              {ci: "echo broken; exit 3", want: "nothing is released: .ci/run: exit status 3"},
		"a file is changed":     {spoil: func(t *testing.T, dir string) { write(t, dir+"/CHANGELOG.md", "x") }, want: "not clean"},
		"a file is not in git":  {spoil: func(t *testing.T, dir string) { write(t, dir+"/new", "x") }, want: "not clean"},
		"a version without a v": {version: "0.1.0", want: `version "0.1.0" is not of the form`},
		"half a version":        {version: "v0.1", want: `version "v0.1" is not of the form`},
		"build metadata":        {version: "v0.1.0+a", want: "is not of the form"},
		"no version":            {version: "x", want: "is not of the form"},
		"version 2":             {version: "v2.0.0", want: "module paths end in the major version"},
		"a module's tag exists": {spoil: func(t *testing.T, dir string) { do(t, dir, "tag", "policy/v0.1.0") }, want: "tag policy/v0.1.0 exists"},
		"no branch":             {spoil: func(t *testing.T, dir string) { do(t, dir, "checkout", "-q", "--detach") }, want: "no branch is checked out"},
		"requirements differ":   {spoil: func(t *testing.T, dir string) { requires(t, dir, "v0.0.9") }, want: "requires"},
		"no section":            {spoil: func(t *testing.T, dir string) { changelog(t, dir, "# Changelog\n") }, want: "has no section"},
		"the section is there":  {spoil: func(t *testing.T, dir string) { changelog(t, dir, "## [Unreleased]\n- x\n## [0.1.0]\n") }, want: "a section 0.1.0 already"},
		"the branch moves":      {ci: "git -C %s commit -q --allow-empty -m meanwhile", want: "has moved since"},
		"a tag is made by CI":   {ci: "git -C %s tag redislimit/v0.1.0", want: "nothing is released: the tags"},
		"a file is made by CI":  {ci: "touch %s/new", want: "has changed since"},
		"changes in the clone":  {ci: "touch new", want: ""},
		"a prerelease":          {version: "v0.1.0-rc.1", want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.ci == "" && test.spoil == nil && test.want != "" {
				require.ErrorContains(t, run(first, test.version, false, day, new(bytes.Buffer)), test.want)
				return
			}
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(first)))
			write(t, filepath.Join(dir, ".ci/run"), strings.ReplaceAll(test.ci, "%s", dir))
			do(t, dir, "commit", "-q", "--allow-empty", "-am", "ci")
			if test.spoil != nil {
				test.spoil(t, dir)
			}
			if test.version == "" {
				test.version = "v0.1.0"
			}
			before := state(t, dir)
			err := run(dir, test.version, false, day, new(bytes.Buffer))
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
			if strings.Contains(test.ci, dir) || strings.Contains(test.ci, "%s") {
				assert.NotContains(t, do(t, dir, "log", "--format=%s"), "Release")
				return
			}
			assert.Equal(t, before, state(t, dir))
		})
	}
}

func requires(t *testing.T, dir, version string) {
	file := filepath.Join(dir, "policy", "go.mod")
	write(t, file, regexp.MustCompile(`(weir-go/ratelimit) v\S+`).ReplaceAllString(read(t, file), "$1 "+version))
	do(t, dir, "commit", "-qam", "another version")
}

func changelog(t *testing.T, dir, text string) {
	write(t, filepath.Join(dir, "CHANGELOG.md"), text)
	do(t, dir, "commit", "-qam", "changelog")
}
