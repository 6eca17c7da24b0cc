package ratelimit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestErrorsInLogsHaveOneName: whoever searches the log of a service for an error has one attribute to
// ask for, whichever package has written the line.
func TestErrorsInLogsHaveOneName(t *testing.T) {
	const name, others = `"error"`, ` "err" "cause" "Error" "failure_cause" `
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			for _, arg := range call.Args {
				if lit, ok := arg.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					assert.NotContains(t, others, " "+lit.Value+" ", "%s: an error's name in logs is %s", files.Position(lit.Pos()), name)
					if lit.Value == name {
						found++
					}
				}
			}
			return true
		})
		return nil
	}))
	assert.GreaterOrEqual(t, found, 8, "the lines of edge, failover and policy")
}
