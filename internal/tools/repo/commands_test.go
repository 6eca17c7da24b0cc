package repo

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// command is a go command in a document.
type command struct {
	line string
	args []string // without "go"
	cd   string   // the folder of a preceding cd, or ""
}

var goCommand = regexp.MustCompile(`\bgo (?:-C \S+ )?(?:test|run) [^` + "`" + `]*`)

// commandsOf returns the go commands in a document's code: in spans, fences and indented lines.
func commandsOf(text string) (all []command) {
	fenced, cd := false, ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		code := []string{line}
		if !fenced && !strings.HasPrefix(line, "    ") {
			code = code[:0]
			for i, span := range strings.Split(line, "`") {
				if i%2 == 1 {
					code = append(code, span)
				}
			}
		}
		for _, c := range code {
			if dir, ok := strings.CutPrefix(strings.TrimSpace(c), "cd "); ok {
				cd, _, _ = strings.Cut(dir, " ")
			}
			if found := goCommand.FindString(c); found != "" {
				all = append(all, command{found, words(found)[1:], cd})
			}
		}
	}
	return all
}

// words splits a line as a shell does, up to a comment or the next command.
func words(line string) (all []string) {
	word, quote, begun := "", rune(0), false
	flush := func() {
		if begun {
			all, word, begun = append(all, word), "", false
		}
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ':
			flush()
		case (r == '#' || r == '|' || r == '&' || r == ';' || r == '>') && !begun:
			return all
		default:
			word, begun = word+string(r), true
		}
	}
	flush()
	return all
}

// flagsOfGo lists the flags of go test and go run in documents. The value reports whether the flag takes an argument.
var flagsOfGo = map[string]bool{
	"run": true, "bench": true, "fuzz": true, "fuzztime": true, "count": true, "cpu": true, "timeout": true, "benchtime": true, "tags": true, "skip": true,
	"v": false, "race": false, "short": false, "benchmem": false, "list": true, "cpuprofile": true, "p": true,
}

// check returns why a document's command cannot work, or nil. It looks for folders, targets and flags that do not exist. A
// path may be relative to the folder of -C, to the document's folder, to the root, or to the folder of the document's cd.
func (c command) check(root, dir string) error {
	args, bases := c.args, []string{filepath.Join(root, dir), root, filepath.Join(root, c.cd)}
	if args[0] == "-C" {
		if strings.ContainsAny(args[1], "$<") {
			return nil
		}
		bases = []string{filepath.Join(root, dir, args[1]), filepath.Join(root, args[1])}
		args = args[2:]
	}
	verb, args := args[0], args[1:]
	var packages, own []string
	patterns := map[string]string{}
	for i := 0; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], "-")
		switch {
		case !ok:
			packages = append(packages, args[i])
			if verb == "run" {
				i = len(args) // the rest are the program's arguments
			}
		case verb == "run":
			if flagsOfGo[name] {
				i++
			}
		default:
			name, value, joined := strings.Cut(name, "=")
			takes, known := flagsOfGo[name]
			if !known {
				own = append(own, name)
				takes = i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") && !strings.HasPrefix(args[i+1], ".")
			}
			if takes && !joined {
				if i++; i < len(args) {
					value = args[i]
				}
			}
			patterns[name] = value
		}
	}
	if verb == "test" && len(packages) == 0 {
		packages = []string{"."}
	}
	err := fmt.Errorf("no folder has the packages %q", packages)
	for _, base := range bases {
		if dirs, ok := folders(base, packages); ok {
			if err = checkTargets(dirs, patterns, own); err == nil {
				return nil
			}
		}
	}
	return err
}

// folders returns the packages' folders below a base, or false if one does not exist.
func folders(base string, packages []string) (dirs []string, ok bool) {
	for _, p := range packages {
		if strings.ContainsAny(p, "$<") || strings.ToUpper(filepath.Base(p)) == filepath.Base(p) && filepath.Base(p) != "." && filepath.Base(p) != "..." || strings.Contains(p, "@") {
			continue // a placeholder, or another module's program
		}
		above, all := strings.CutSuffix(p, "...")
		dir := filepath.Join(base, above)
		if below, ok := strings.CutPrefix(above, "github.com/weir-go/ratelimit"); ok {
			dir = filepath.Join(root, below)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 && !all {
			return nil, false
		}
		dirs = append(dirs, dir)
		if all {
			_ = filepath.WalkDir(dir, func(sub string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, sub)
				}
				return nil
			})
		}
	}
	return dirs, true
}

// checkTargets returns an error if a pattern has an alternative that matches no target, or if a flag is not declared.
func checkTargets(dirs []string, patterns map[string]string, own []string) error {
	targets, flags := map[string]bool{}, map[string]bool{}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			return err
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				return err
			}
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil {
					targets[d.Name.Name] = true
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					for _, arg := range call.Args {
						if lit, ok := arg.(*ast.BasicLit); ok && lit.Kind == token.STRING {
							flags[strings.Trim(lit.Value, "`\"")] = true
						}
					}
				}
				return true
			})
		}
	}
	for flag, kinds := range map[string][]string{"run": {"Test", "Example", "Fuzz"}, "bench": {"Benchmark"}, "fuzz": {"Fuzz"}} {
		pattern := patterns[flag]
		if pattern == "" || pattern == "^$" || pattern == "." {
			continue
		}
		for one := range strings.SplitSeq(strings.Trim(pattern, "()"), "|") {
			one, _, _ = strings.Cut(one, "/") // without a subtest's name
			matches, err := regexp.Compile(one)
			if err != nil {
				return err
			}
			found := false
			for name := range targets {
				for _, kind := range kinds {
					found = found || strings.HasPrefix(name, kind) && matches.MatchString(name)
				}
			}
			if !found {
				return fmt.Errorf("no target matches -%s %s in %q", flag, one, dirs)
			}
		}
	}
	for _, name := range own {
		if !flags[name] {
			return fmt.Errorf("no test in %q declares the flag -%s", dirs, name)
		}
	}
	return nil
}

func TestCommandsInDocumentsNamePackagesTestsAndFlagsThatExist(t *testing.T) {
	n := 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." { // the name of root itself is ".."
			return leftOut(err)
		}
		if d.IsDir() || !strings.HasSuffix(file, ".md") {
			return nil
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		dir, err := filepath.Rel(root, filepath.Dir(file))
		require.NoError(t, err)
		for _, c := range commandsOf(string(text)) {
			n++
			assert.NoError(t, c.check(root, dir), "%s: %s", file, c.line)
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, n, 60)
}

// leftOut returns SkipDir, or the error if there is one.
func leftOut(err error) error {
	if err != nil {
		return err
	}
	return filepath.SkipDir
}

func TestACommandThatNamesNothingIsFound(t *testing.T) {
	for line, want := range map[string]string{
		"    go test -run '^$' -fuzz FuzzHistory -fuzztime 10m .":                       "no target matches -fuzz FuzzHistory",
		"see `go test ./internal/nowhere -v`":                                           "no folder has the packages",
		"`go -C internal/proofs test ./migrate -run 'WaitersWhoGiveUp|Gone' -v`":        "no target matches -run Gone",
		"    go test ./chain -run Strictest -chainz 4000   # a chain":                   "declares the flag -chainz",
		"`go test -run '^$' -bench NoSuchThing -count 10 .`":                            "no target matches -bench NoSuchThing",
		"    go run ./examples/nothing   # with $X":                                     "no folder has the packages",
		"    GOGC=400 go test ./ratelimittest -run TestManySeedz -last 1 -timeout 0 # ": "no target matches -run TestManySeedz",
	} {
		all := commandsOf(line)
		require.Len(t, all, 1, line)
		require.ErrorContains(t, all[0].check(root, "."), want, line)
	}
	for _, line := range []string{
		"    go test -run '^$' -fuzz FuzzHistory -fuzztime 10m ./internal/dev/model   # all calls",
		"`go -C internal/tools run ./names -dir ../..` counts", "`go run ./examples/NAME`", "```\ngo run ./examples/hello > /dev/null\n```",
	} {
		all := commandsOf(line)
		require.Len(t, all, 1, line)
		require.NoError(t, all[0].check(root, "."), line)
	}
	require.Empty(t, commandsOf("Then go test it, and go run away."))
}

// joinedList matches a numbered list with its items in one paragraph.
var joinedList = regexp.MustCompile(`(?:^|\s)1[.)] \pL.*\s2[.)] \pL`)

// joinedLists returns a comment's paragraphs with several items of a numbered
// list. An indented item at a line's beginning is a paragraph of its own.
func joinedLists(comment string) (all []string) {
	paragraph := ""
	flush := func() {
		if joinedList.MatchString(paragraph) {
			all = append(all, paragraph)
		}
		paragraph = ""
	}
	item := regexp.MustCompile(`^\s*\d+[.)] `)
	for line := range strings.Lines(comment) {
		line = strings.TrimRight(strings.TrimPrefix(strings.TrimSpace(line), "//"), " ")
		if text := strings.TrimSpace(line); text == "" || item.MatchString(line) {
			flush()
			paragraph = text
		} else {
			paragraph += " " + text
		}
	}
	flush()
	return all
}

func TestNoCommentHoldsAListInOneParagraph(t *testing.T) {
	for comment, n := range map[string]int{
		"// It goes through these steps: 1. lease: the charges are decided. 2. run: one call\n// checks the others.": 1,
		"//  1. lease: the charges are decided\n//     one by one. 2. run: one call checks the others.":              1,
		"// Steps:\n//\n//  1. lease: the charges\n//     are decided.\n//  2. run: one call.\n//\n// End.":          0,
		"// 1. one\n// 2. two": 0,
		"// Then the decision starts again at 2. An account is locked.": 0,
	} {
		require.Len(t, joinedLists(comment), n, comment)
	}
	files := 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." { // the name of root itself is ".."
			return leftOut(err)
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "commands_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		files++
		for _, group := range f.Comments {
			text := ""
			for _, c := range group.List {
				text += c.Text + "\n"
			}
			assert.Empty(t, joinedLists(text), file)
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, files, 500)
}
