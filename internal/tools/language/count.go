package main

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kind is a kind of text.
type kind int

const (
	goComments kind = iota
	goTestComments
	luaComments
	shellComments
	pages
	goStrings // string literals with several words outside tests, for example errors, log lines and descriptions
)

var kinds = [...]string{"Go", "Go tests", "Lua", "shell", "pages", "strings of Go"}

// figures has the number of words, and how many hits each rule has.
type figures struct {
	words    int
	hits     [len(rules)]int
	measured [len(measured)]int
}

func (f *figures) add(g figures) {
	f.words += g.words
	for r := range f.hits {
		f.hits[r] += g.hits[r]
	}
	for m := range f.measured {
		f.measured[m] += g.measured[m]
	}
}

// hit is one phrase found by a rule, with its line as text.
type hit struct {
	file, rule, text string
	line             int
}

// counted has the figures for a folder and all folders in it.
type counted struct {
	kinds   [len(kinds)]figures
	folders map[string]*figures // without strings
	hits    []hit

	identifiers, speech int // how many names Go files declare, and how many names describe speech
}

// countFolder counts all files below a folder. It skips Git's own files.
// It also skips test data, because it contains bad text on purpose.
func countFolder(root string) (*counted, error) {
	c := &counted{folders: map[string]*figures{}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		return c.countFile(root, path)
	})
	slices.SortStableFunc(c.hits, func(a, b hit) int { return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line)) })
	return c, err
}

// countFile adds one file's figures.
func (c *counted) countFile(root, path string) error {
	read := readerOf(path)
	if read == nil {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	passages, err := read(path, string(content))
	if err != nil {
		return err
	}
	if filepath.Ext(path) == ".go" {
		if err := c.countNames(root, path, content); err != nil {
			return err
		}
	}
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	folder := filepath.ToSlash(filepath.Dir(name))
	if c.folders[folder] == nil {
		c.folders[folder] = &figures{}
	}
	for _, p := range passages {
		f := c.countPassage(name, p)
		c.kinds[p.kind].add(f)
		if p.kind != goStrings {
			c.folders[folder].add(f)
		}
	}
	return nil
}

// countPassage records the hits in one passage, and returns its figures.
func (c *counted) countPassage(name string, p passage) figures {
	text := strings.Join(p.lines, "\n")
	joined := strings.ReplaceAll(text, "\n", " ") // so that a phrase may continue on the next line
	f := figures{words: words(joined)}
	for r, rule := range rules {
		for _, at := range rule.expr.FindAllStringIndex(joined, -1) {
			if rule.skip != nil && rule.skip(joined[:at[0]], joined[at[0]:]) {
				continue
			}
			f.hits[r]++
			n := strings.Count(text[:at[0]], "\n")
			c.hits = append(c.hits, hit{file: name, rule: joined[at[0]:at[1]], text: strings.TrimSpace(p.lines[n]), line: p.first + n})
		}
	}
	for m := range measured {
		f.measured[m] = len(measured[m].expr.FindAllStringIndex(joined, -1))
	}
	return f
}

// countNames counts a Go file's declared identifiers, and records a hit for each one describing speech.
func (c *counted) countNames(root, path string, content []byte) error {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, content, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	for id := range declared(file) {
		c.identifiers++
		if slices.ContainsFunc(parts(id.Name), speech.MatchString) {
			c.speech++
			c.hits = append(c.hits, hit{file: name, rule: "identifier", text: id.Name, line: set.Position(id.Pos()).Line})
		}
	}
	return nil
}

// declared yields the names of a file's functions, types, constants, variables, parameters, results and fields.
func declared(file *ast.File) iter.Seq[*ast.Ident] {
	return func(yield func(*ast.Ident) bool) {
		ast.Inspect(file, func(n ast.Node) bool {
			var ids []*ast.Ident
			switch n := n.(type) {
			case *ast.FuncDecl:
				ids = []*ast.Ident{n.Name}
			case *ast.TypeSpec:
				ids = []*ast.Ident{n.Name}
			case *ast.ValueSpec:
				ids = n.Names
			case *ast.Field:
				ids = n.Names
			case *ast.AssignStmt:
				for _, e := range n.Lhs {
					if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE && id.Name != "_" {
						ids = append(ids, id)
					}
				}
			}
			for _, id := range ids {
				if !yield(id) {
					return false
				}
			}
			return true
		})
	}
}

// parts returns an identifier's words: for example, ask and state for askState.
func parts(name string) []string {
	var words []string
	begin := 0
	for i, r := range name {
		if i > begin && (r == '_' || r >= 'A' && r <= 'Z') {
			words = append(words, strings.Trim(name[begin:i], "_"))
			begin = i
		}
	}
	return append(words, strings.Trim(name[begin:], "_"))
}

// words counts the words: fields with a letter.
func words(s string) int {
	n := 0
	for field := range strings.FieldsSeq(s) {
		if strings.ContainsFunc(field, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }) {
			n++
		}
	}
	return n
}
