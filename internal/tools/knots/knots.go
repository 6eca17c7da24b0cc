package main

import (
	"cmp"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"

	"github.com/weir-go/ratelimit/internal/tools/repo"
	"github.com/weir-go/ratelimit/internal/tools/source"
)

// use is one use of a declaration in another file of its package.
type use struct {
	from, to string // files
	id       string // the declaration's name
}

// knot is a package's largest set of files in which each file uses every other one, directly or through others.
type knot struct {
	path  string // the package's path within the repository
	all   int    // how many files the package has
	files []string
	uses  []use // uses between the knot's files
}

// find returns each package's largest knot, sorted by path. Packages without a knot are left out.
func find(root string) ([]knot, error) {
	modules, err := repo.Modules(root)
	if err != nil {
		return nil, err
	}
	l, err := source.New(root, modules)
	if err != nil {
		return nil, err
	}
	packages, err := l.All()
	if err != nil {
		return nil, err
	}
	var knots []knot
	for _, p := range packages {
		dir, err := filepath.Rel(root, p.Dir)
		if err != nil {
			return nil, err
		}
		if k := largest(l.Set, p); len(k.files) > 1 {
			k.path = filepath.ToSlash(dir)
			knots = append(knots, k)
		}
	}
	slices.SortFunc(knots, func(a, b knot) int { return cmp.Compare(a.path, b.path) })
	return knots, nil
}

// largest returns a package's largest knot.
func largest(set *token.FileSet, p *source.Package) knot {
	uses := between(set, p)
	next := map[string][]string{}
	for _, u := range uses {
		next[u.from] = append(next[u.from], u.to)
	}
	k := knot{all: len(p.Files)}
	for _, files := range circles(next) {
		if len(files) > len(k.files) {
			k.files = files
		}
	}
	for _, u := range uses {
		if slices.Contains(k.files, u.from) && slices.Contains(k.files, u.to) {
			k.uses = append(k.uses, u)
		}
	}
	return k
}

// between lists where a package's files use each other's functions, types, constants, variables
// and methods, once for each file and declaration. A field's use counts as its type's.
func between(set *token.FileSet, p *source.Package) []use {
	found := map[use]bool{}
	for _, file := range p.Files {
		from := filepath.Base(set.Position(file.Package).Filename)
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			obj := origin(p.Info.Uses[id])
			if obj == nil || obj.Pkg() != p.Types {
				return true
			}
			if to := filepath.Base(set.Position(obj.Pos()).Filename); to != from {
				found[use{from, to, name(obj)}] = true
			}
			return true
		})
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b use) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.id, b.id))
	})
}

// origin returns the generic declaration of an instance.
func origin(obj types.Object) types.Object {
	switch obj := obj.(type) {
	case *types.Func:
		return obj.Origin()
	case *types.Var:
		return obj.Origin()
	}
	return obj
}

// name returns a declaration's name. For a method, it includes the type.
func name(obj types.Object) string {
	f, ok := obj.(*types.Func)
	if !ok || f.Signature().Recv() == nil {
		return obj.Name()
	}
	t := f.Signature().Recv().Type()
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	if named, ok := t.(*types.Named); ok {
		return named.Obj().Name() + "." + obj.Name()
	}
	return obj.Name()
}

// circles returns a graph's strongly connected components, each sorted
// (Tarjan, Depth-first search and linear graph algorithms, 1972).
func circles(next map[string][]string) [][]string {
	var (
		all          [][]string
		path         []string
		index, lower = map[string]int{}, map[string]int{}
		visit        func(string)
	)
	visit = func(at string) {
		index[at] = len(index) + 1
		lower[at] = index[at]
		path = append(path, at)
		for _, to := range next[at] {
			if index[to] == 0 {
				visit(to)
				lower[at] = min(lower[at], lower[to])
			} else if slices.Contains(path, to) {
				lower[at] = min(lower[at], index[to])
			}
		}
		if lower[at] == index[at] {
			i := slices.Index(path, at)
			all = append(all, slices.Sorted(slices.Values(path[i:])))
			path = path[:i]
		}
	}
	for _, at := range slices.Sorted(maps.Keys(next)) {
		if index[at] == 0 {
			visit(at)
		}
	}
	return all
}
