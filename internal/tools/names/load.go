package main

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/internal/tools/repo"
	"github.com/weir-go/ratelimit/internal/tools/source"
)

// load reads the modules' packages, the tests of packages with
// examples, and the standard packages whose interfaces require methods.
func load(root string, modules []repo.Module) (all, tests []*source.Package, foreign []*types.Package, err error) {
	l, err := source.New(root, modules, standard...)
	if err != nil {
		return nil, nil, nil, err
	}
	if all, err = l.All(); err != nil {
		return nil, nil, nil, err
	}
	for _, p := range all {
		d := l.Dirs[p.Path]
		for _, names := range [][]string{d.XTestGoFiles, d.TestGoFiles} {
			if files, err := l.Parse(d, names); err != nil {
				return nil, nil, nil, err
			} else if slices.ContainsFunc(files, hasExamples) {
				if d.XTestGoFiles == nil || !slices.Equal(names, d.XTestGoFiles) {
					files = append(files, p.Files...)
				}
				tests = append(tests, l.Check(p.Path, d.Dir, files))
			}
		}
	}
	for _, p := range standard {
		known, err := l.Import(p)
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
