package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// passage is consecutive prose in one file: a comment, a paragraph or a string. It has one
// line for each of its lines in the file. The line is blank if the file has only code there.
type passage struct {
	kind  kind
	first int // its first line's number
	lines []string
}

// readerOf returns the function that extracts a file's prose, or nil if files with this name have no prose.
func readerOf(path string) func(path, content string) ([]passage, error) {
	switch filepath.Ext(path) {
	case ".go":
		return readGo
	case ".lua":
		return readLua
	case ".md":
		return readPage
	case ".sh", "":
		return readShell
	}
	return nil
}

// code matches code within prose, literals in quotes or back quotes, and addresses. target matches a link's address.
var (
	code   = regexp.MustCompile("`[^`\n]*`|\"[^\"\n]*\"|https?://\\S+")
	target = regexp.MustCompile(`\]\([^)\n]*\)`)
)

// prose returns a line without links' addresses. It replaces code and literals by a placeholder, not counted as a word.
func prose(line string) string {
	return strings.TrimSpace(code.ReplaceAllString(target.ReplaceAllString(line, "]"), "_"))
}

func readGo(path, content string) ([]passage, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	test := strings.HasSuffix(path, "_test.go")
	var all []passage
	for _, group := range file.Comments {
		p := passage{kind: goComments, first: set.Position(group.Pos()).Line}
		if test {
			p.kind = goTestComments
		}
		for _, comment := range group.List {
			for line := range strings.SplitSeq(comment.Text, "\n") {
				p.lines = append(p.lines, goLine(line))
			}
		}
		for n, line := range p.lines {
			if expected := strings.TrimSpace(line); expected == "Output:" || expected == "Unordered output:" || strings.HasPrefix(expected, "Output: ") {
				p.lines = p.lines[:n] // the rest is a program's output
				break
			}
		}
		all = append(all, p)
	}
	if !test {
		ast.Inspect(file, func(n ast.Node) bool {
			if _, imports := n.(*ast.ImportSpec); imports {
				return false
			}
			literal, isLiteral := n.(*ast.BasicLit)
			if !isLiteral || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err == nil && words(text) >= 3 && !strings.Contains(text, "\n") {
				all = append(all, passage{kind: goStrings, first: set.Position(literal.Pos()).Line, lines: []string{prose(text)}})
			}
			return true
		})
	}
	return all, nil
}

// goLine returns the prose in one line of a comment. It returns "" for a
// directive, and for code: a line that begins with a tab or four spaces.
func goLine(line string) string {
	text, isLine := strings.CutPrefix(line, "//")
	if !isLine {
		return prose(strings.Trim(line, "/* \t"))
	}
	if text != "" && text[0] != ' ' && text[0] != '\t' {
		return "" // a directive, such as //go:build
	}
	if strings.HasPrefix(text, "\t") || strings.HasPrefix(text, " \t") || strings.HasPrefix(text, "     ") && !strings.HasPrefix(strings.TrimSpace(text), "- ") {
		return ""
	}
	return prose(text)
}

// readLua returns a Lua program's comments. Consecutive lines form one passage.
func readLua(_, content string) ([]passage, error) {
	return lineComments(content, luaComments, "--"), nil
}

// readShell returns a shell program's comments. A file is a shell program if its first line names a shell.
func readShell(path, content string) ([]passage, error) {
	first, rest, _ := strings.Cut(content, "\n")
	if filepath.Ext(path) == "" && !(strings.HasPrefix(first, "#!") && strings.HasSuffix(strings.TrimSpace(first), "sh")) {
		return nil, nil
	}
	return lineComments("\n"+rest, shellComments, "#"), nil
}

// lineComments returns the comments, each from a mark to the line's end.
func lineComments(content string, k kind, mark string) []passage {
	var all []passage
	var open *passage
	number := 0
	for line := range strings.SplitSeq(content, "\n") {
		number++
		at := commentAt(line, mark)
		if at < 0 {
			open = nil
			continue
		}
		text := prose(strings.TrimLeft(line[at:], mark))
		if alone := strings.TrimSpace(line[:at]) == ""; open != nil && alone {
			open.lines = append(open.lines, text)
			continue
		}
		all = append(all, passage{kind: k, first: number, lines: []string{text}})
		open = &all[len(all)-1]
	}
	return all
}

// commentAt returns where a line's comment begins, or −1. It begins at the
// first mark outside quotes, at the line's beginning or after a space.
func commentAt(line, mark string) int {
	var quote byte
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quote != 0:
			if c == '\\' {
				i++
			} else if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case strings.HasPrefix(line[i:], mark) && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t'):
			return i
		}
	}
	return -1
}

// readPage returns a Markdown page's paragraphs, without code, headings, and tables' head rows.
func readPage(_, content string) ([]passage, error) {
	var all []passage
	fence := ""
	open := false
	lines := strings.Split(content, "\n")
	for n, line := range lines {
		text := strings.TrimSpace(line)
		// the row has the names of a table's columns
		heads := n+1 < len(lines) && strings.HasPrefix(text, "|") && strings.HasPrefix(lines[n+1], "|--")
		switch {
		case fence != "":
			if strings.HasPrefix(text, fence) {
				fence = ""
			}
			open = false
		case strings.HasPrefix(text, "```") || strings.HasPrefix(text, "~~~"):
			fence, open = text[:3], false
		case text == "" || strings.HasPrefix(line, "    ") && !open || strings.HasPrefix(text, "#") || heads:
			open = false
		case open && !strings.HasPrefix(text, "|") && !strings.HasPrefix(text, "- "):
			last := &all[len(all)-1]
			last.lines = append(last.lines, prose(text))
		default:
			all = append(all, passage{kind: pages, first: n + 1, lines: []string{prose(text)}})
			open = true
		}
	}
	return all, nil
}
