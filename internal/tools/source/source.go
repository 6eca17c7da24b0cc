// Package source loads this repository's packages with their types.
package source

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/internal/tools/repo"
)

// Package is one of the repository's packages, or its external tests.
type Package struct {
	Path, Dir string
	Name      string
	Files     []*ast.File
	Types     *types.Package
	Info      *types.Info
}

// Loader checks the types of the repository's packages from source. It does not load other modules:
// their declarations have no type. So nothing has to be compiled, and a count takes seconds.
type Loader struct {
	Set      *token.FileSet
	Dirs     map[string]*build.Package // by import path
	ready    map[string]*Package
	standard types.Importer
	unknown  map[string]*types.Package
}

// New returns a loader for the modules' packages in root, and for the named standard packages.
func New(root string, modules []repo.Module, standard ...string) (*Loader, error) {
	l := &Loader{Set: token.NewFileSet(), Dirs: map[string]*build.Package{}, ready: map[string]*Package{}, unknown: map[string]*types.Package{}}
	for _, m := range modules {
		own, err := m.Packages(root)
		if err != nil {
			return nil, err
		}
		maps.Copy(l.Dirs, own)
	}
	var err error
	l.standard, err = l.compiled(root, standard)
	return l, err
}

// All returns the modules' packages, sorted by path.
func (l *Loader) All() (all []*Package, err error) {
	for _, p := range slices.Sorted(maps.Keys(l.Dirs)) {
		if _, err := l.Import(p); err != nil {
			return nil, err
		}
		all = append(all, l.ready[p])
	}
	return all, nil
}

// compiled returns an importer for standard packages.
func (l *Loader) compiled(root string, standard []string) (types.Importer, error) {
	args := slices.Concat([]string{"list", "-export", "-f", "{{.ImportPath}} {{.Export}}"}, standard)
	for _, p := range l.Dirs {
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") && !slices.Contains(args, imported) && imported != "unsafe" && imported != "C" {
				args = append(args, imported)
			}
		}
	}
	out, err := repo.Run(root, nil, "go", args...)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for line := range strings.Lines(out) {
		p, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[p] = file
	}
	return importer.ForCompiler(l.Set, "gc", func(p string) (io.ReadCloser, error) { return os.Open(files[p]) }), nil
}

// Import returns one of the repository's packages or a standard package. For any other path it returns an empty package.
func (l *Loader) Import(p string) (*types.Package, error) {
	if done := l.ready[p]; done != nil {
		return done.Types, nil
	}
	if d := l.Dirs[p]; d != nil {
		files, err := l.Parse(d, append(d.GoFiles, d.CgoFiles...))
		if err != nil {
			return nil, err
		}
		l.ready[p] = l.Check(p, d.Dir, files)
		return l.ready[p].Types, nil
	}
	if first, _, _ := strings.Cut(p, "/"); !strings.Contains(first, ".") {
		return l.standard.Import(p)
	}
	if l.unknown[p] == nil {
		base := path.Base(p)
		if strings.TrimLeft(base, "v0123456789") == "" { // the last element is a major version
			base = path.Base(path.Dir(p))
		}
		l.unknown[p] = types.NewPackage(p, base)
		l.unknown[p].MarkComplete()
	}
	return l.unknown[p], nil
}

// Parse reads the named files of a package.
func (l *Loader) Parse(d *build.Package, names []string) (files []*ast.File, err error) {
	for _, name := range names {
		file, err := parser.ParseFile(l.Set, filepath.Join(d.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Dir, err)
		}
		files = append(files, file)
	}
	return files, nil
}

// Check checks the files' types, and ignores unknown ones.
func (l *Loader) Check(p, dir string, files []*ast.File) *Package {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	conf := types.Config{Importer: l, Error: func(error) {}}
	checked, _ := conf.Check(p, l.Set, files, info)
	name := ""
	if len(files) > 0 {
		name = files[0].Name.Name
	}
	return &Package{Path: p, Dir: dir, Name: name, Files: files, Types: checked, Info: info}
}
