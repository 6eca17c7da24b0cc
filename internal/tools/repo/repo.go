// Package repo reads this repository's modules.
package repo

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/build"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// Module is a module of the repository.
type Module struct {
	Dir string // relative to the repository, with slashes; "." for the root module
	Mod *modfile.File
}

// Path returns the module's path.
func (m Module) Path() string { return m.Mod.Module.Mod.Path }

// Published reports whether others can require the module. If so, it gets its own tag with each release.
func (m Module) Published() bool {
	return !slices.Contains([]string{"internal/proofs", "examples/servers", "internal/tools"}, m.Dir)
}

// Tag returns the name of the module's tag for a version.
func (m Module) Tag(version string) string { return path.Join(m.Dir, version) }

// Modules returns the modules in root and below, the root module first.
func Modules(root string) ([]Module, error) {
	var all []Module
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "go.mod" {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		mod, err := modfile.Parse(file, text, nil)
		if err != nil {
			return err
		}
		if mod.Module == nil {
			return fmt.Errorf("%s names no module", file)
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		all = append(all, Module{filepath.ToSlash(dir), mod})
		return err
	})
	slices.SortFunc(all, func(a, b Module) int { return cmp.Compare(a.Path(), b.Path()) })
	if err == nil && (len(all) == 0 || all[0].Dir != ".") {
		err = fmt.Errorf("%s holds no module of its own", root)
	}
	return all, err
}

// Packages returns a module's packages by import path. It skips testdata, hidden
// folders, other modules' folders, and folders with one of the skipped names.
func (m Module) Packages(root string, skipped ...string) (map[string]*build.Package, error) {
	all := make(map[string]*build.Package)
	base := filepath.Join(root, filepath.FromSlash(m.Dir))
	err := filepath.WalkDir(base, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if dir != base {
			name := d.Name()
			_, err := os.Stat(filepath.Join(dir, "go.mod"))
			if err == nil || strings.HasPrefix(name, ".") || name == "testdata" || slices.Contains(skipped, name) {
				return filepath.SkipDir
			}
		}
		p, err := build.ImportDir(dir, 0)
		if none := (*build.NoGoError)(nil); errors.As(err, &none) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(base, dir)
		all[path.Join(m.Path(), filepath.ToSlash(rel))] = p
		return err
	})
	return all, err
}

// Siblings returns a module's requirements within the repository.
func Siblings(m Module, all []Module) []*modfile.Require {
	var siblings []*modfile.Require
	for _, r := range m.Mod.Require {
		if strings.HasPrefix(r.Mod.Path+"/", all[0].Path()+"/") {
			siblings = append(siblings, r)
		}
	}
	return siblings
}

// Version returns the version at which the modules require each other. It returns an error
// if there are several versions, or if a required module does not exist or is not published.
func Version(all []Module) (string, error) {
	published := make(map[string]bool)
	for _, m := range all {
		published[m.Path()] = m.Published()
	}
	version, first := "", ""
	var errs []error
	for _, m := range all {
		for _, r := range Siblings(m, all) {
			switch {
			case !published[r.Mod.Path]:
				errs = append(errs, fmt.Errorf("%s requires %s, which is not published", m.Path(), r.Mod.Path))
			case version == "":
				version, first = r.Mod.Version, m.Path()
			case version != r.Mod.Version:
				errs = append(errs, fmt.Errorf("%s requires %s, but %s requires version %s", m.Path(), r.Mod, first, version))
			}
		}
	}
	if version == "" {
		errs = append(errs, errors.New("no module requires another: there is no version to pack"))
	}
	return version, errors.Join(errs...)
}

// Run runs a command in dir, and returns its standard output. The error contains its standard error.
func Run(dir string, env []string, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(c.Args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}
