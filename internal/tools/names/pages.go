package main

import (
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// pages records the names on the documentation's pages for users.
func (c *counted) pages(root string) error {
	var texts []string
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"internal", "testdata"}, d.Name())):
			return filepath.SkipDir
		case filepath.Ext(file) != ".md" || slices.Contains([]string{"CHANGELOG.md", "CONTRIBUTING.md"}, d.Name()):
			return nil
		}
		text, err := os.ReadFile(file)
		texts = append(texts, string(text))
		return err
	})
	if err != nil {
		return err
	}
	word := regexp.MustCompile(`\.?\b[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*\b\(?`)
	for _, text := range texts {
		found := map[string]bool{}
		for _, w := range word.FindAllString(text, -1) {
			w, called := strings.CutSuffix(w, "(")
			parts := strings.Split(strings.TrimPrefix(w, "."), ".")
			for i := range parts[:len(parts)-1] {
				found[parts[i]+"."+parts[i+1]] = true
			}
			if called && (len(parts) > 1 || strings.HasPrefix(w, ".")) {
				found["."+parts[len(parts)-1]] = true // the method may belong to any type
			}
			found[parts[0]] = true
		}
		for _, n := range c.names {
			short := path.Base(n.pkg)
			if found[short+"."+n.id] && n.recv == "" || n.recv != "" && (found[n.recv+"."+n.id] || found["."+n.id] && found[short]) {
				n.show(byPage)
			}
		}
	}
	return nil
}

// exemptions lists names to keep although nothing shows them, one a line, with the reason after a colon.
//
//go:embed exemptions.txt
var exemptions string

// exempt marks the names in a list of exemptions. It returns an error for
// a line without a reason, and for a name that is not public or is shown.
func (c *counted) exempt(list string) error {
	var wrong []string
	for line := range strings.Lines(list) {
		id, why, _ := strings.Cut(strings.TrimSpace(line), ":")
		if id == "" || strings.HasPrefix(id, "#") {
			continue
		}
		n := c.byKey[id]
		switch {
		case strings.TrimSpace(why) == "":
			wrong = append(wrong, id+" has no reason")
		case n == nil:
			wrong = append(wrong, id+" is no public name")
		case n.shown > exempt:
			wrong = append(wrong, id+" is shown: "+n.shown.String())
		default:
			n.shown = exempt
		}
	}
	c.sum()
	if len(wrong) > 0 {
		return fmt.Errorf("exemptions.txt: %s", strings.Join(wrong, "; "))
	}
	return nil
}
