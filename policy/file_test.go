package policy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

// linkTo links a path to a target in one step, as ln -sfn and Kubernetes do.
func linkTo(t testing.TB, target, path string) {
	t.Helper()
	require.NoError(t, os.Symlink(target, path+".tmp"))
	require.NoError(t, os.Rename(path+".tmp", path))
}

// TestFileNoticesEveryLinkOnItsWay moves each link of a path in turn. There are links to the
// file, to its folder and to a folder far up, relative and absolute ones, and links to links.
func TestFileNoticesEveryLinkOnItsWay(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		path   string // the file's path in its own folder
		change func(t *testing.T, dir, v string)
	}{
		"a folder": {"current/rules.yaml", func(t *testing.T, dir, v string) {
			folder(t, filepath.Join(dir, v), v)
			linkTo(t, v, filepath.Join(dir, "current"))
		}},
		"a folder far up, by an absolute link": {"releases/current/etc/api/rules.yaml", func(t *testing.T, dir, v string) {
			folder(t, filepath.Join(dir, "elsewhere", v, "etc", "api"), v)
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "releases"), 0o700))
			linkTo(t, filepath.Join(dir, "elsewhere", v), filepath.Join(dir, "releases", "current"))
		}},
		"a link to a link": {"rules.yaml", func(t *testing.T, dir, v string) {
			folder(t, filepath.Join(dir, "a", v), v)
			folder(t, filepath.Join(dir, "b"), v)
			linkTo(t, "../a/"+v+"/rules.yaml", filepath.Join(dir, "b", "rules.yaml"))
			linkTo(t, "b/rules.yaml", filepath.Join(dir, "rules.yaml"))
		}},
		"the link in the middle of three": {"one/rules.yaml", func(t *testing.T, dir, v string) {
			folder(t, filepath.Join(dir, "x", v), v)
			linkTo(t, "x/"+v, filepath.Join(dir, "two"))
			linkTo(t, "two", filepath.Join(dir, "one"))
		}},
		"a link by way of ..": {"a/../current/rules.yaml", func(t *testing.T, dir, v string) {
			folder(t, filepath.Join(dir, "a"), v)
			folder(t, filepath.Join(dir, v), v)
			linkTo(t, "a/../"+v, filepath.Join(dir, "current"))
		}},
		"a ConfigMap": {"rules.yaml", func(t *testing.T, dir, v string) {
			folder(t, filepath.Join(dir, "..2026_"+v), v)
			linkTo(t, "..2026_"+v, filepath.Join(dir, "..data"))
			if _, err := os.Lstat(filepath.Join(dir, "rules.yaml")); err != nil {
				require.NoError(t, os.Symlink("..data/rules.yaml", filepath.Join(dir, "rules.yaml")))
			}
		}},
		"a plain folder that is replaced": {"rules/rules.yaml", func(t *testing.T, dir, v string) {
			folder(t, filepath.Join(dir, v), v)
			if _, err := os.Stat(filepath.Join(dir, "rules")); err == nil {
				require.NoError(t, os.Rename(filepath.Join(dir, "rules"), filepath.Join(dir, "old"+v)))
			}
			require.NoError(t, os.Rename(filepath.Join(dir, v), filepath.Join(dir, "rules")))
		}},
		"a folder that is made late": {"later/on/rules.yaml", func(t *testing.T, dir, v string) {
			folder(t, filepath.Join(dir, "later", "on"), v)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := filepath.EvalSymlinks(t.TempDir())
			require.NoError(t, err)
			late := name == "a folder that is made late"
			if !late {
				test.change(t, dir, "v0")
			}
			p, _ := followed(t, policy.File(dir+string(filepath.Separator)+filepath.FromSlash(test.path)))
			if !late {
				becomes(t, p, "v0")
			}
			for _, v := range []string{"v1", "v2", "v3"} {
				test.change(t, dir, v)
				becomes(t, p, v)
			}
		})
	}
}

// folder makes a folder with a file of the given version. The file gets its name last, so that it appears complete.
func folder(t testing.TB, path, version string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(path, 0o700))
	write(t, filepath.Join(path, "new"), versioned(version))
	require.NoError(t, os.Rename(filepath.Join(path, "new"), filepath.Join(path, "rules.yaml")))
}

// TestAPauseInTheMiddleOfAWriteFreesNoBudget writes a file in place, rule by rule. During
// each pause the incomplete file would be valid. No rule disappears, so all spending stays.
func TestAPauseInTheMiddleOfAWriteFreesNoBudget(t *testing.T) {
	t.Parallel()
	for range 20 {
		longest := pausesInAWrite(t)
		if t.Failed() || longest < filePause {
			return
		}
		// The machine was busy, and a pause took longer than the reader waits for further writes.
	}
	t.Error("the file was never written with short pauses only")
}

// filePause is much shorter than the reader's wait for further writes in place.
const filePause = 400 * time.Millisecond

// pausesInAWrite returns the longest pause between two writes. If that is filePause or more, the result is not judged.
func pausesInAWrite(t *testing.T) (longest time.Duration) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	rules := []string{
		"- {name: first, limit: fixed-window 100/h}\n",
		"- {name: second, key: user, limit: fixed-window 5/h}\n",
		"- {name: third, key: ip, optional: true, limit: fixed-window 5/h}\n",
	}
	write(t, path, "version: v0\nrules:\n"+rules[0]+rules[1]+rules[2])
	p, _ := followed(t, policy.File(path))
	becomes(t, p, "v0")
	ann := attrs{"user": "ann"}
	require.True(t, p.Allow(ann, 5))
	for i := 1; i <= 3; i++ {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0o600)
		require.NoError(t, err)
		last := time.Now()
		for _, part := range append([]string{fmt.Sprintf("version: v%d\nrules:\n", i)}, rules...) {
			_, err = f.WriteString(part)
			require.NoError(t, err)
			longest, last = max(longest, time.Since(last)), time.Now()
			time.Sleep(time.Duration(i) * 60 * time.Millisecond)
		}
		require.NoError(t, f.Close())
		if longest >= filePause {
			return longest
		}
		becomes(t, p, fmt.Sprintf("v%d", i))
		assert.False(t, p.Allow(ann, 1), "the budget of the second rule was freed")
	}
	assert.EqualValues(t, 5, p.Stats().Generation, "New's, and those of four whole files")
	return longest
}
