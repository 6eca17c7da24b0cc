package main

import (
	"cmp"
	"io/fs"
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
	goStrings // string literals of several words in files other than tests: errors, log lines, descriptions
)

var kinds = [...]string{"Go", "Go tests", "Lua", "shell", "pages", "strings of Go"}

// figures are the numbers of words and of each rule's hits.
type figures struct {
	words int
	hits  [len(rules)]int
}

func (f *figures) add(g figures) {
	f.words += g.words
	for r := range f.hits {
		f.hits[r] += g.hits[r]
	}
}

// hit is one phrase that a rule found. The text is its line.
type hit struct {
	file, rule, text string
	line             int
}

// counted are the figures of a folder and of all folders in it.
type counted struct {
	kinds   [len(kinds)]figures
	folders map[string]*figures // without strings
	hits    []hit
}

// countFolder counts all files below a folder. Test data and Git's own files are skipped: test data holds earlier versions on purpose.
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

// countFile adds the figures of one file.
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

// countPassage records the hits of one passage, and returns its figures.
func (c *counted) countPassage(name string, p passage) figures {
	text := strings.Join(p.lines, "\n")
	joined := strings.ReplaceAll(text, "\n", " ") // so that a phrase may run over the end of a line
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
	return f
}

// words returns the number of words: fields that have a letter.
func words(s string) int {
	n := 0
	for field := range strings.FieldsSeq(s) {
		if strings.ContainsFunc(field, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }) {
			n++
		}
	}
	return n
}
