package main

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

// loaded is a package of the repository, or the external tests of one.
type loaded struct {
	path, dir string
	name      string
	files     []*ast.File
	types     *types.Package
	info      *types.Info
}

// loader checks the types of the repository's packages from source. It does not load other modules: their declarations have no
// type. So nothing has to be compiled, and a count takes seconds.
type loader struct {
	set      *token.FileSet
	dirs     map[string]*build.Package // by import path
	ready    map[string]*loaded
	standard types.Importer
	unknown  map[string]*types.Package
}

// load reads the packages of some modules, the tests of packages that have examples, and the standard packages that demand
// methods.
func load(root string, modules []repo.Module) (all, tests []*loaded, foreign []*types.Package, err error) {
	l := &loader{set: token.NewFileSet(), dirs: map[string]*build.Package{}, ready: map[string]*loaded{}, unknown: map[string]*types.Package{}}
	for _, m := range modules {
		own, err := m.Packages(root)
		if err != nil {
			return nil, nil, nil, err
		}
		maps.Copy(l.dirs, own)
	}
	if l.standard, err = l.compiled(root); err != nil {
		return nil, nil, nil, err
	}
	for _, p := range slices.Sorted(maps.Keys(l.dirs)) {
		if _, err := l.Import(p); err != nil {
			return nil, nil, nil, err
		}
		all = append(all, l.ready[p])
		d := l.dirs[p]
		for _, names := range [][]string{d.XTestGoFiles, d.TestGoFiles} {
			if files, err := l.parse(d, names); err != nil {
				return nil, nil, nil, err
			} else if slices.ContainsFunc(files, hasExamples) {
				if d.XTestGoFiles == nil || !slices.Equal(names, d.XTestGoFiles) {
					files = append(files, l.ready[p].files...)
				}
				tests = append(tests, l.check(p, d.Dir, files))
			}
		}
	}
	for _, p := range standard {
		known, err := l.standard.Import(p)
		if err != nil {
			return nil, nil, nil, err
		}
		foreign = append(foreign, known)
	}
	return all, tests, foreign, nil
}

func hasExamples(file *ast.File) bool {
	return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && isExample(f)
	})
}

func isExample(f *ast.FuncDecl) bool {
	return f.Recv == nil && strings.HasPrefix(f.Name.Name, "Example")
}

// compiled returns an importer of the packages of the standard library.
func (l *loader) compiled(root string) (types.Importer, error) {
	args := append([]string{"list", "-export", "-f", "{{.ImportPath}} {{.Export}}"}, standard...)
	for _, p := range l.dirs {
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
	return importer.ForCompiler(l.set, "gc", func(p string) (io.ReadCloser, error) { return os.Open(files[p]) }), nil
}

// Import returns a package of the repository or of the standard library, or one without names in place of another.
func (l *loader) Import(p string) (*types.Package, error) {
	if done := l.ready[p]; done != nil {
		return done.types, nil
	}
	if d := l.dirs[p]; d != nil {
		files, err := l.parse(d, append(d.GoFiles, d.CgoFiles...))
		if err != nil {
			return nil, err
		}
		l.ready[p] = l.check(p, d.Dir, files)
		return l.ready[p].types, nil
	}
	if first, _, _ := strings.Cut(p, "/"); !strings.Contains(first, ".") {
		return l.standard.Import(p)
	}
	if l.unknown[p] == nil {
		base := path.Base(p)
		if strings.TrimLeft(base, "v0123456789") == "" { // a major version
			base = path.Base(path.Dir(p))
		}
		l.unknown[p] = types.NewPackage(p, base)
		l.unknown[p].MarkComplete()
	}
	return l.unknown[p], nil
}

func (l *loader) parse(d *build.Package, names []string) (files []*ast.File, err error) {
	for _, name := range names {
		file, err := parser.ParseFile(l.set, filepath.Join(d.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Dir, err)
		}
		files = append(files, file)
	}
	return files, nil
}

// check checks types as far as they are known.
func (l *loader) check(p, dir string, files []*ast.File) *loaded {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	conf := types.Config{Importer: l, Error: func(error) {}}
	checked, _ := conf.Check(p, l.set, files, info)
	name := ""
	if len(files) > 0 {
		name = files[0].Name.Name
	}
	return &loaded{path: p, dir: dir, name: name, files: files, types: checked, info: info}
}
