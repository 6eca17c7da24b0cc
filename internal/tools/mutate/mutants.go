package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is one change to a package's code.
type mutant struct {
	pkg, name string
	find      []string // lines
	replace   []string
	explained string // why no test can notice it; "" if a test must notice it

	file  string // the changed file's path in the repository
	text  string // the file's text with the change
	plain string // the file's text without it
}

// parse reads mutants. Each one begins with its package and its effect:
//
//	[internal/meter] a fraction is not rounded up
//	- if rest > 0 {
//	+ if rest > 1 {
//	= only if no test can notice it: why
//
// The lines after "-" must occur in exactly one place in the package, with any
// indentation. The lines after "+" replace them. Lines beginning with "#" are comments.
func parse(data string) ([]*mutant, error) {
	var all []*mutant
	names := make(map[string]bool)
	for i, line := range strings.Split(data, "\n") {
		kind, rest, _ := strings.Cut(strings.TrimRight(line, " \t"), " ")
		switch {
		case kind == "" || strings.HasPrefix(kind, "#"):
			continue
		case strings.HasPrefix(kind, "["):
			m := &mutant{pkg: strings.Trim(kind, "[]"), name: rest}
			if id := m.pkg + " " + m.name; rest == "" || names[id] {
				return nil, fmt.Errorf("line %d: each mutant of a package needs a name of its own", i+1)
			} else {
				names[id] = true
			}
			all = append(all, m)
			continue
		case len(all) == 0:
			return nil, fmt.Errorf("line %d: no [package] before it", i+1)
		}
		switch m := all[len(all)-1]; kind {
		case "-":
			m.find = append(m.find, rest)
		case "+":
			m.replace = append(m.replace, rest)
		case "=":
			m.explained = strings.TrimSpace(m.explained + " " + rest)
		default:
			return nil, fmt.Errorf("line %d begins with %q, want [package], -, + or =", i+1, kind)
		}
	}
	for _, m := range all {
		if len(m.find) == 0 {
			return nil, fmt.Errorf("%s: %s: nothing to find", m.pkg, m.name)
		}
	}
	return all, nil
}

// pattern returns an expression matching lines with any indentation.
func pattern(lines []string) *regexp.Regexp {
	quoted := make([]string, len(lines))
	for i, line := range lines {
		quoted[i] = regexp.QuoteMeta(strings.TrimSpace(line))
	}
	return regexp.MustCompile(strings.Join(quoted, `[ \t]*\n[ \t]*`))
}

// locate finds the mutants in their packages' files, and in scripts
// below them. It returns one error for all mutants not found.
func locate(dir string, all []*mutant) error {
	packages := make(map[string]map[string]string)
	var errs []error
	for _, m := range all {
		files := packages[m.pkg]
		if files == nil {
			var err error
			if files, err = sources(dir, m.pkg); err != nil {
				return err
			}
			packages[m.pkg] = files
		}
		if err := m.locate(files); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", m.pkg, m.name, err))
		}
	}
	return errors.Join(errs...)
}

// sources returns a package's files, and the scripts below it, by path in the repository.
func sources(dir, pkg string) (map[string]string, error) {
	files := make(map[string]string)
	for _, glob := range []string{"*.go", "*/*.lua", "*/*/*.lua"} {
		paths, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pkg), glob))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			file, err := filepath.Rel(dir, path)
			if err != nil {
				return nil, err
			}
			files[file] = string(text)
		}
	}
	return files, nil
}

// locate finds a mutant in the files. It returns an error unless
// the mutant occurs in exactly one place and changes something.
func (m *mutant) locate(files map[string]string) error {
	re := pattern(m.find)
	var found []string
	for _, file := range slices.Sorted(maps.Keys(files)) {
		for _, at := range re.FindAllStringIndex(files[file], -1) {
			found = append(found, file)
			m.file, m.plain = file, files[file]
			m.text = m.plain[:at[0]] + strings.Join(m.replace, "\n") + m.plain[at[1]:]
		}
	}
	switch {
	case len(found) != 1:
		return fmt.Errorf("found in %d places %v", len(found), found)
	case m.text == m.plain:
		return errors.New("changes nothing")
	}
	return nil
}
