package repo_test

import (
	"encoding/json"
	"go/types"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/tools/repo"
	"github.com/weir-go/ratelimit/internal/tools/source"
)

// additions returns the row of CONTRIBUTING.md's table of additions that begins with the text begin.
func additions(t *testing.T, root, begin string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	require.NoError(t, err)
	_, row, found := strings.Cut(string(text), "\n| "+begin+" | ")
	require.True(t, found, "no row %q", begin)
	row, _, _ = strings.Cut(row, "\n")
	return row
}

// TestTheRowsOfAdditionsNameNoFileThatIsGone looks for each path of the table in the root and in the folders of its row.
func TestTheRowsOfAdditionsNameNoFileThatIsGone(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	require.NoError(t, err)
	_, rows, found := strings.Cut(string(text), "\n| to add | look at |\n|---|---|\n")
	require.True(t, found)
	rows, _, _ = strings.Cut(rows, "\n\n")
	quoted := regexp.MustCompile("`([a-z_./]+)`")
	checked := 0
	for row := range strings.Lines(rows) {
		folders := []string{root}
		for _, m := range quoted.FindAllStringSubmatch(row, -1) {
			folder := m[1]
			if path.Ext(folder) != "" {
				folder = path.Dir(folder)
			}
			if dir := filepath.Join(root, folder); isFolder(dir) {
				folders = append(folders, dir)
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(row, -1) {
			if path.Ext(m[1]) == "" && !strings.Contains(m[1], "/") {
				continue // a word, or a folder at the root
			}
			checked++
			assert.True(t, slices.ContainsFunc(folders, func(dir string) bool {
				_, err := os.Stat(filepath.Join(dir, m[1]))
				return err == nil
			}), "%s of %q does not exist", m[1], row)
		}
	}
	assert.Greater(t, checked, 30)
}

func isFolder(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}

// TestTheRowsForFieldsNameTheFilesOfTheFieldsBefore, because a new field of a
// Decision or a rule needs changes in about the same files as the latest fields.
func TestTheRowsForFieldsNameTheFilesOfTheFieldsBefore(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	modules, err := repo.Modules(root)
	require.NoError(t, err)
	l, err := source.New(root, modules)
	require.NoError(t, err)
	packages, err := l.All()
	require.NoError(t, err)
	library := modules[0].Path()
	for _, c := range []struct {
		row, pkg, of string
		fields       []string
	}{
		{"a field of `Decision`", library, "Decision", []string{"NextAfter"}},
		{"a field of rules", library + "/policy", "Rule", []string{"Actual", "Grace", "Charge"}},
		{"a matcher of rules", library + "/policy", "Match", []string{"Suffix", "Absent"}},
	} {
		row := additions(t, root, c.row)
		at := slices.IndexFunc(packages, func(p *source.Package) bool { return p.Path == c.pkg })
		require.GreaterOrEqual(t, at, 0)
		all := packages[at].Types.Scope().Lookup(c.of).Type().Underlying().(*types.Struct)
		wanted := map[types.Object]bool{}
		for i := range all.NumFields() {
			wanted[all.Field(i)] = slices.Contains(c.fields, all.Field(i).Name())
		}
		seen := map[string]bool{}
		for _, p := range packages {
			for id, obj := range p.Info.Uses {
				if !wanted[obj] {
					continue
				}
				file, err := filepath.Rel(root, l.Set.Position(id.Pos()).Filename)
				require.NoError(t, err)
				dir := path.Dir(filepath.ToSlash(file))
				if p.Path == c.pkg {
					dir = path.Base(file) // the row names the files of the struct's own package one by one
				}
				seen[dir] = true
			}
		}
		assert.NotEmpty(t, seen)
		for place := range seen {
			assert.Contains(t, row, "`"+place+"`", "the row %q", c.row)
		}
	}
}

// TestAFieldThatIsAddedFailsWhereTheRowsPoint adds a field to a Decision
// and to a rule, and compares the failing checks with the rows.
func TestAFieldThatIsAddedFailsWhereTheRowsPoint(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	for _, c := range []struct {
		row, module, file, of, field string
		args                         []string
		fail                         []string // texts in the output, each followed by the place that the row names for it
	}{
		{"a field of `Decision`", ".", "decision.go", "Decision", "Extra int", []string{"build", "."}, []string{"merge.Decision", "`internal/merge`"}},
		{"a field of rules", "policy", "policy/set.go", "Rule", "Extra string `json:\"extra,omitempty\" yaml:\"extra,omitempty\"`",
			[]string{"test", "-run", "^(TestTheSchemaHasTheFieldsOfTheFormat|TestEachFieldOfARuleHasAColumnOrIsAWord)$", ".", "./internal/words"},
			[]string{"FAIL: TestTheSchemaHasTheFieldsOfTheFormat", "`docs/policy.schema.json`", "FAIL: TestEachFieldOfARuleHasAColumnOrIsAWord", "`policy/internal/words`"}},
	} {
		t.Run(c.of, func(t *testing.T) {
			dir := t.TempDir()
			text, err := os.ReadFile(filepath.Join(root, c.file))
			require.NoError(t, err)
			begin := "\ntype " + c.of + " struct {\n"
			require.Contains(t, string(text), begin)
			changed := filepath.Join(dir, "changed.go")
			require.NoError(t, os.WriteFile(changed, []byte(strings.Replace(string(text), begin, begin+"\t"+c.field+"\n", 1)), 0o600))
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, c.file): changed}})
			require.NoError(t, err)
			list := filepath.Join(dir, "overlay.json")
			require.NoError(t, os.WriteFile(list, overlay, 0o600))
			command := exec.Command("go", slices.Concat(c.args[:1], []string{"-overlay", list}, c.args[1:])...)
			command.Dir = filepath.Join(root, c.module)
			out, err := command.CombinedOutput()
			require.Error(t, err, "the field %q was added, and all passed", c.field)
			row := additions(t, root, c.row)
			for i := 0; i < len(c.fail); i += 2 {
				assert.Contains(t, string(out), c.fail[i])
				assert.Contains(t, row, c.fail[i+1])
			}
		})
	}
}
