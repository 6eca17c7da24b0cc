package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var files = map[string]string{
	"go.mod": "module m\n\ngo 1.25\n",
	"core/core.go": `package core

import "time"

func Max(a, b int) int {
	if a > b {
		return a
	}
	for i := 0; i < 1; i++ {
		time.Sleep(1)
	}
	return b
}

func Half(a int) int {
	half := a / 2
	return half
}

func Unseen() int { return 7 }
`,
	"core/core_test.go": `package core

import (
	"os"
	"testing"
)

func TestMax(t *testing.T) {
	if Max(1, 2) != 2 || Max(2, 1) != 2 {
		t.Fatal("not the larger one")
	}
}

func TestHalf(t *testing.T) {
	if os.Getenv("RATELIMIT_TEST_SEED") == "1" && Half(4) != 2 {
		t.Fatal("not half")
	}
}
`,
	"user/go.mod":       "module m/user\n\ngo 1.25\n\nrequire m v0.0.0\n\nreplace m => ../\n",
	"user/user.go":      "package user\n\nimport \"m/core\"\n\nfunc Seven() int { return core.Unseen() }\n",
	"user/user_test.go": "package user\n\nimport \"testing\"\n\nfunc TestSeven(t *testing.T) {\n\tif Seven() != 7 {\n\t\tt.Fatal()\n\t}\n}\n",
}

// repository makes a repository with the files above.
func repository(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("git", "-C", dir, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	return dir
}

// mutants parses a text's mutants, and locates them in a folder.
func mutants(t *testing.T, dir, text string) []*mutant {
	all, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := locate(dir, all); err != nil {
		t.Fatal(err)
	}
	return all
}

// If a change to the code makes a mutant obsolete, this test fails.
// So nobody has to wait for the next mutation run to learn of it.
func TestEachMutantIsInTheCode(t *testing.T) {
	mutants(t, "../../..", data)
}

func TestWhatNoTestNoticesSurvives(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	dir := repository(t)
	all := mutants(t, dir, `
[core] the smaller
- if a > b {
+ if a < b {
[core] the same of equals
- if a > b {
+ if a >= b {
[core] for ever
- for i := 0; i < 1; i++ {
- time.Sleep(1)
+ for i := 0; i < 1; {
+ time.Sleep(time.Second)
[core] a third
- half := a / 2
+ half := a / 3
[core] eight
- return 7
+ return 8
[core] not tried
- return b
+ return b + 0
= it is the same
`)
	var out bytes.Buffer
	survived, err := options{dir: dir, seeds: 2, together: 1}.run(context.Background(), all, &out)
	if err != nil {
		t.Fatal(err)
	}
	if survived != 1 {
		t.Error(survived, "survived, want 1")
	}
	for _, want := range []string{
		`core: the smaller: killed by TestMax\n`,
		`core: the same of equals: SURVIVED\n`,
		`core: for ever: killed by a hang\n`,
		`core: a third: killed by TestHalf, with seed 1 only\n`,
		`core: eight: killed by user TestSeven\n`,
		`\n +6 +4 +1 +1  core\n`,
		`\nSURVIVED: core: the same of equals \(core/core.go\)\n`,
	} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("lacks %s:\n%s", want, out.String())
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "core/core.go")); err != nil || string(text) != files["core/core.go"] {
		t.Error("the repository has changed", err)
	}
}

// If a test fails only together with others, it does not hide later failures. If a
// test fails with a seed, it kills no mutant unless it passes without the mutant.
func TestAFailureThatNeedsNoMutantKillsNothing(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	dir := repository(t)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mark := filepath.Join(t.TempDir(), "mark")
	write("core/before_test.go", `package core

import (
	"os"
	"testing"
)

func TestABadDay(t *testing.T) { // the first time that the mutant is there
	if _, err := os.Stat("`+mark+`"); err != nil && Max(1, 2) != 2 {
		os.WriteFile("`+mark+`", nil, 0o600)
		t.Fatal("a bad day")
	}
}
`)
	var out bytes.Buffer
	play := func(text string) (int, error) {
		return options{dir: dir, seeds: 2, near: true, together: 1}.run(context.Background(), mutants(t, dir, text), &out)
	}
	if survived, err := play("[core] the smaller\n- if a > b {\n+ if a < b {"); err != nil || survived != 0 || !strings.Contains(out.String(), "killed by TestMax\n") {
		t.Error(survived, err, out.String())
	}
	write("core/before_test.go", strings.Replace(files["core/core_test.go"], "Half(4) != 2", "Half(4) == 2", 1))
	if err := os.Remove(filepath.Join(dir, "core/core_test.go")); err != nil {
		t.Fatal(err)
	}
	if _, err := play("[core] eight\n- return 7\n+ return 8"); err == nil || !strings.Contains(err.Error(), "core fails without a mutant with seed 1: TestHalf") {
		t.Error(err, out.String())
	}
}

func TestAMutantThatCannotBeTriedIsAnError(t *testing.T) {
	dir := repository(t)
	for text, want := range map[string]string{
		"[core] gone\n- if a > c {\n+ x":           "core: gone: found in 0 places",
		"[core] twice\n- return\n+ x":              "core: twice: found in 4 places",
		"[core] same\n- return 7\n+ return 7":      "core: same: changes nothing",
		"[elsewhere] gone\n- return 7\n+ return 8": "elsewhere: gone: found in 0 places",
	} {
		all, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if err = locate(dir, all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"- x\n+ y":                           "line 1: no [package]",
		"[a] b\n+ x":                         "a: b: nothing to find",
		"[a]\n- x\n+ y":                      "line 1: each mutant",
		"[a] b\n- x\n+ y\n[a] b\n- x\n+ z\n": "line 4: each mutant",
		"[a] b\n- x\n* y":                    `line 3 begins with "*"`,
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if !testsize.Long() {
		return
	}
	all := mutants(t, dir, "[core] no Go\n- return 7\n+ return nothing")
	var out bytes.Buffer
	survived, err := options{dir: dir, seeds: 1, near: true, together: 1}.run(context.Background(), all, &out)
	if want := "core: no Go: SURVIVED, as it does not compile"; err != nil || survived != 1 || !strings.Contains(out.String(), want) {
		t.Error(survived, err, out.String())
	}
}
