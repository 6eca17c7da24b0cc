package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// oddTexts matches texts that a function of package internal/optional
// should make: Nil, NilInside, NotNegative, AtLeastOne, Within or Zero.
var oddTexts = regexp.MustCompile(`\bwas given no\b|^\w+: .* is %[dv], want (at least 1$|1 or more|1 to %[dv], or 0 for)|\bis (a )?nil(:|$)|^nil [A-Z]|: nil [A-Z]|(got|gave|given|returned?s?|needs) (a )?nil\b|not made by|zero [A-Z]\w+; use New|^[\w.%: /]+ is %[dv], want 0( or more|, or more| for [\w ]+,? or more)$`)

// TestMisuseIsReportedInOneForm checks the string literals of all packages that users import, directly or
// not. A nil argument, a value that no constructor has made, and a number out of range have one text each.
func TestMisuseIsReportedInOneForm(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		if d.IsDir() {
			for _, skipped := range []string{".git", "examples", "internal/dev", "internal/proofs", "internal/tools", "internal/optional"} {
				if name == skipped {
					return fs.SkipDir
				}
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, text, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				seen++
				text, err := strconv.Unquote(lit.Value)
				require.NoError(t, err)
				assert.NotRegexp(t, oddTexts, text, set.Position(lit.Pos()).String())
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	assert.Greater(t, seen, 1000, "the files are found")
}

// TestPeekAdjustAndResetTakeAContext reads the public API. The methods must have the same form on
// all limiters. A client's Reset is exempt: it only drops servers' announcements, and calls nothing.
func TestPeekAdjustAndResetTakeAContext(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "api", "api.txt"))
	require.NoError(t, err)
	method := regexp.MustCompile(`\) (Peek|PeekEach|Adjust|Reset)\((.*)$`)
	found := 0
	for _, line := range strings.Split(string(text), "\n") {
		m := method.FindStringSubmatch(line)
		if m == nil || strings.Contains(line, "/internal/") || strings.Contains(line, "(*Client)") || strings.Contains(line, "(*Transport)") {
			continue
		}
		found++
		assert.Regexp(t, `^(\w+ )?context\.Context\b`, m[2], line)
	}
	assert.Greater(t, found, 20)
}
