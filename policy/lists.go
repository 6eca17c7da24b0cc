package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a set's lists.
const (
	maxLists  = 100
	maxListed = 100_000 // the maximum number of values in one list
)

// List is the values that a match names by @NAME: see [Set.Lists]. In a file it is either another file's name or the values.
type List struct {
	// File is a file's path beside the rules, with slashes, without ".." and not absolute. The file has a value on
	// each line. Space around the value, empty lines and comments are ignored. A comment begins with "#" at a line's
	// beginning or after a space. [File] reads at most 4 MiB and 100,000 values from a list; the file may be empty.
	File string
	// Values are the values. If File is empty, the program sets them. Otherwise they are
	// read from it. [New] refuses a set if a list was not read, for example after [Parse].
	Values []string

	lines []int // each value's line in File; nil if it was not read
}

// MarshalJSON returns the file or the values.
func (l List) MarshalJSON() ([]byte, error) {
	if l.File != "" {
		return json.Marshal(l.File)
	}
	return json.Marshal(l.Values)
}

// unread reports whether the list's file has not been read.
func (l *List) unread() bool { return l.File != "" && l.lines == nil }

// place returns the place of the i-th value of the list for an error. It leaves out the value: it may be a key.
func (l *List) place(name string, i int) string {
	if i < len(l.lines) {
		return fmt.Sprintf("list %q: %s: line %d", name, l.File, l.lines[i])
	}
	return fmt.Sprintf("list %q: value %d", name, i+1)
}

// lists are a set's lists by name.
type lists map[string]List

// listIn returns the name of the list in a match's value.
func listIn(v string) (name string, ok bool) {
	name, ok = strings.CutPrefix(v, "@")
	return name, ok && !strings.HasPrefix(name, "@")
}

// literal returns the text of a value without a list. The value "@@x" is the text "@x".
func literal(v string) string {
	if strings.HasPrefix(v, "@@") {
		return v[1:]
	}
	return v
}

// of returns the values, with lists' values in place of their names.
func (l lists) of(values []string) []string {
	if !slices.ContainsFunc(values, func(v string) bool { return strings.HasPrefix(v, "@") }) {
		return values
	}
	all := []string{}
	l.each(values, func(_ int, v string, _ func(error) error) { all = append(all, v) })
	return all
}

// each calls f for each value of a match, with lists' values in place of their names. f receives
// the index of the match's value, the value, and a function to add the place in a list to an error.
func (l lists) each(values []string, f func(j int, v string, in func(error) error)) {
	for j, v := range values {
		name, ok := listIn(v)
		if !ok {
			f(j, literal(v), func(err error) error { return err })
			continue
		}
		list := l[name]
		for i, listed := range list.Values {
			f(j, listed, func(err error) error { return fmt.Errorf("%s: %w", list.place(name, i), err) })
		}
	}
}

// known returns an error if a match's value names a list unknown to the set.
func (l lists) known(v string) error {
	name, ok := listIn(v)
	if _, found := l[name]; !ok || found {
		return nil
	}
	if checkName(name) != nil {
		return errors.New(`an "@" at the beginning, which names a list: want @ and a list's name, or "@@" for a text that begins with "@"`)
	}
	return fmt.Errorf(`no list %q%s; a text that begins with "@" is written with "@@"`, name, maybe(name, slices.Sorted(maps.Keys(l))))
}

// eachChecked calls check for each value of a match, with lists' values in place of
// their names. It reports an error at the match's value, with the place in the list.
func (l lists) eachChecked(field string, values []string, report reporter, check func(v string, listed bool) error) {
	at := func(j int) string { return fmt.Sprintf("%s[%d]", field, j) }
	for j, v := range values {
		if err := l.known(v); err != nil {
			report(at(j), err)
		}
	}
	l.each(values, func(j int, v string, in func(error) error) {
		_, listed := listIn(values[j])
		if err := check(v, listed); err != nil {
			report(at(j), in(err))
		}
	})
}

// check reports errors of the lists. An unread list is an error unless unread is true.
func (l lists) check(unread bool, report func(*Error)) {
	if len(l) > maxLists {
		report(&Error{Field: "lists", Err: fmt.Errorf("%d lists, want at most %d", len(l), maxLists)})
		return
	}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		list := l[name]
		wrong := func(err error) { report(&Error{Field: "lists." + name, Err: err}) }
		switch {
		case checkName(name) != nil:
			report(&Error{Field: "lists", Err: fmt.Errorf("a list's name: %w", checkName(name))})
			continue
		case list.File == "" && len(list.Values) == 0:
			wrong(errors.New("neither a file nor values"))
		case list.File != "" && checkBeside(list.File) != nil:
			wrong(checkBeside(list.File))
			continue
		case list.unread() && !unread:
			wrong(fmt.Errorf("list %q: the file %s was not read: File reads it beside the rules", name, strconv.Quote(list.File)))
		case len(list.Values) > maxListed:
			wrong(fmt.Errorf("list %q: %d values, want at most %d", name, len(list.Values), maxListed))
		}
		for i, v := range list.Values[:min(len(list.Values), maxListed)] {
			if err := checkListed(v); err != nil {
				wrong(fmt.Errorf("%s: %w", list.place(name, i), err))
			}
		}
	}
}

// checkBeside returns an error if a path can leave the rules' folder.
func checkBeside(path string) error {
	switch {
	case checkText(path) != nil:
		return checkText(path)
	case strings.ContainsFunc(path, unicode.IsControl):
		return errors.New("a path with a control character")
	case !filepath.IsLocal(filepath.FromSlash(path)) || filepath.Clean(filepath.FromSlash(path)) == ".":
		return fmt.Errorf("%q, want the path of a file beside the rules, without .. and not absolute", path)
	}
	return nil
}

// checkListed returns an error if a text cannot be a value of a list.
func checkListed(v string) error {
	switch {
	case v == "":
		return errors.New("nothing, want a value")
	case !utf8.ValidString(v):
		return errors.New("text that is not UTF-8")
	case strings.ContainsFunc(v, unicode.IsControl):
		return errors.New("a control character")
	}
	return checkText(v)
}

// readList returns the values of a list's file, and their lines.
func readList(data []byte) (values []string, lines []int) {
	values, lines = []string{}, []int{}
	line := 0
	for text := range bytes.Lines(bytes.TrimPrefix(data, []byte("\ufeff"))) {
		line++
		for i, b := range text {
			if b == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t') {
				text = text[:i]
				break
			}
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			values, lines = append(values, string(text)), append(lines, line)
		}
	}
	return values, lines
}

// load reads the lists' files with beside, and reports unreadable files.
func (l lists) load(beside func(file string) ([]byte, error), report func(*Error)) {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		list := l[name]
		if list.File == "" || checkBeside(list.File) != nil {
			continue
		}
		data, err := beside(list.File)
		if err == nil && len(data) > maxSize {
			err = fmt.Errorf("policy: %s has more than %d bytes", list.File, maxSize)
		}
		if err != nil {
			list.lines = []int{} // so no further error is reported for it
			report(&Error{Field: "lists." + name, Err: fmt.Errorf("list %q: %w", name, err)})
		} else {
			list.Values, list.lines = readList(data)
		}
		l[name] = list
	}
}
