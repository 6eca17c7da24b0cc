package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// write writes files into a folder, and returns the folder. The map holds their contents by name.
func write(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

func TestModulesAreFoundWhereverTheyAre(t *testing.T) {
	dir := write(t, map[string]string{
		"go.mod": "", "a_test.go": "1234567890123456", "sub/b_test.go": "2",
		"big/go.mod": "", "big/deep/a_test.go": "12345", "big/large.go": "not a test", "big/inner/go.mod": "", "big/inner/a_test.go": "123", "big/z_test.go": "6",
		"x/y/go.mod": "", "sub/testdata/go.mod": "", ".cache/go.mod": "",
	})
	modules, err := find(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{dir + "/big", dir + "/big/inner", dir, dir + "/x/y"}, modules, "those with the most tests first, and a sixth of the root's count")
}

const quick = `package quick

import (
	"os"
	"testing"
)

func TestQuick(t *testing.T) {}

func TestLeftOut(t *testing.T) { t.Skip("no server") }

func TestTimed(t *testing.T) {
	if os.Getenv("RATELIMIT_TEST_TIMED") == "later" {
		t.Skip("it bounds a time, and runs alone after all others")
	}
	t.Fatal("it runs alone")
}
`

const broken = `package broken

import "testing"

func TestBroken(t *testing.T) { t.Error("this is wrong") }

func TestSound(t *testing.T) { t.Log("not shown") }

func TestNotAsked(t *testing.T) { t.Error("not asked for") }
`

func TestModulesAreTestedAndReportedOneByOne(t *testing.T) {
	testsize.Extra(t)
	if testing.Short() {
		t.Skip("go test compiles for seconds")
	}
	dir := write(t, map[string]string{
		"quick/go.mod": "module quick\n\ngo 1.25\n", "quick/quick_test.go": quick, "quick/none/none.go": "package none\n",
		"broken/go.mod": "module broken\n\ngo 1.25\n", "broken/broken_test.go": broken, "broken/worse/worse.go": "package worse\n\nvar x int = nothing\n",
	})
	t.Chdir(dir)
	modules, err := find(".")
	require.NoError(t, err)
	var out bytes.Buffer
	r := runner{out: &out, args: []string{"-count=1", "-skip", "NotAsked"}, skipped: make(counts)}
	r.all(modules)
	assert.False(t, r.passed())
	text := regexp.MustCompile(`(\d+\.\d+s| in \d+s)`).ReplaceAllString(out.String(), "T")
	for _, part := range []string{
		"    broken_test.go:5: this is wrong\n--- FAIL: TestBroken (T)\nFAIL\nFAIL\tbroken\tT\n",
		"worse.go:3:13: undefined: nothing\n",
		"ok  \tquick\tT\n",
		"of 2: quick passedT\n",
		"of 2: broken FAILEDT\n",
		"    quick_test.go:16: it runs alone\n--- FAIL: TestTimed (T)\nFAIL\nFAIL\tquick\tT\n-- alone: TestTimed FAILED\n",
		"FAIL: broken TestBroken\nFAIL: quick TestTimed\n\nskipped:\n     1  quick: no server\n",
	} {
		assert.Contains(t, text, part)
	}
	assert.NotContains(t, text, "not shown")
	assert.NotContains(t, text, "none")
}

const extra = `package extra

import (
	"os"
	"testing"
)

func TestExtra(t *testing.T) {
	if os.Getenv("RATELIMIT_TEST_VARIANT") == "quick" {
		t.Skip("scripts/test -all and .ci/run run it")
	}
	t.Log("ran in full")
	t.Fail()
}

func TestPlain(t *testing.T) {}
`

func TestAQuickRunLeavesComparisonsAndExtraTestsToAllAndReportsThem(t *testing.T) {
	if testing.Short() {
		t.Skip("go test compiles for seconds")
	}
	testsize.Extra(t)
	t.Chdir(write(t, map[string]string{
		"go.mod": "module extra\n\ngo 1.25\n", "a_test.go": extra,
		"internal/tools/go.mod": "module tools\n\ngo 1.25\n", "internal/tools/a_test.go": broken,
		"internal/proofs/go.mod": "module proofs\n\ngo 1.25\n", "internal/proofs/a_test.go": broken,
		"internal/proofs/sqltest/a_test.go": extra,
	}))
	t.Setenv(testsize.Variant, "")
	modules, err := find(".")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		quick  bool
		failed int
		prints []string
		not    string
	}{
		"quick": {quick: true, not: "skipped:", prints: []string{"ok  \tproofs/sqltest", "of 2: . passed",
			"\nleft to .ci/run and ./scripts/test -all: 2 tests, and comparisons with peers, frameworks and other databases (internal/proofs, internal/tools)\n"}},
		"all": {failed: 3, not: "left to", prints: []string{"of 3: .", "ran in full"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			r := runner{out: &out, quick: c.quick, skipped: make(counts)}
			r.all(modules)
			assert.Len(t, r.failed, c.failed, out.String())
			assert.Equal(t, c.failed == 0, r.passed())
			for _, part := range c.prints {
				assert.Contains(t, out.String(), part)
			}
			assert.NotContains(t, out.String(), c.not)
		})
	}
}

func TestArgumentsForTheTestsStayLast(t *testing.T) {
	testsize.Extra(t)
	if testing.Short() {
		t.Skip("go test compiles for seconds")
	}
	t.Chdir(write(t, map[string]string{
		"go.mod": "module arguments\n\ngo 1.25\n", "a_test.go": `package arguments

import (
	"flag"
	"testing"
)

func TestArguments(t *testing.T) {
	if flag.Arg(0) != "./x" || testing.Short() == false {
		t.Error(flag.Args())
	}
}
`,
	}))
	var out bytes.Buffer
	r := runner{out: &out, args: []string{"-short", "-args", "./x"}, skipped: make(counts)}
	r.all([]string{"."})
	assert.True(t, r.passed(), out.String())
}
