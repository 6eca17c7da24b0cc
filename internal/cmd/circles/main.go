// Command circles prints which files of a package depend on each other in a circle,
// and exits with status 1 if a circle has more files than are allowed.
//
//	go run ./internal/cmd/circles [-most 3] [-edges] [folder]…
//
// A file depends on another if it refers to a name that the other declares: a
// constant, variable, type, function, field or method. Test files do not count. A
// reader of a package without circles can start with the files that depend on
// nothing, and needs no other file to understand one.
package main

import (
	"flag"
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
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	most := flag.Int("most", 3, "the most files that one circle may have")
	edges := flag.Bool("edges", false, "print which files each file depends on")
	flag.Parse()
	folders := flag.Args()
	if len(folders) == 0 {
		folders = []string{"."}
	}
	failed := false
	for _, folder := range folders {
		g, err := load(folder)
		if err != nil {
			fmt.Fprintf(os.Stderr, "circles: %s: %v\n", folder, err)
			os.Exit(2)
		}
		if *edges {
			g.print(os.Stdout)
		}
		failed = report(os.Stdout, folder, g, *most) || failed
	}
	if failed {
		os.Exit(1)
	}
}

// report prints the circles of a folder, and whether one of them is too large.
func report(w io.Writer, folder string, g graph, most int) (tooLarge bool) {
	largest := 1
	for _, circle := range g.circles() {
		fmt.Fprintf(w, "%s: circle of %d files: %s\n", folder, len(circle), strings.Join(circle, " "))
		largest = max(largest, len(circle))
	}
	fmt.Fprintf(w, "%s: %d files, %d references between files, largest circle %d\n", folder, len(g), g.edges(), largest)
	return largest > most
}

// graph says for each file of a package which others it depends on.
type graph map[string]map[string]bool

// load reads the package in a folder, without its tests.
func load(folder string) (graph, error) {
	pkg, err := build.ImportDir(folder, 0)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	g := graph{}
	var files []*ast.File
	for _, name := range append(pkg.GoFiles, pkg.CgoFiles...) {
		f, err := parser.ParseFile(fset, filepath.Join(folder, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		g[name] = map[string]bool{}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	self, err := conf.Check(pkg.ImportPath, fset, files, info)
	if err != nil {
		return nil, err
	}
	for id, obj := range info.Uses {
		if obj.Pkg() == self && obj.Pos().IsValid() {
			g.add(file(fset, id.Pos()), file(fset, obj.Pos()))
		}
	}
	return g, nil
}

func file(fset *token.FileSet, pos token.Pos) string {
	return filepath.Base(fset.Position(pos).Filename)
}

func (g graph) add(from, to string) {
	if from != to {
		g[from][to] = true
	}
}

func (g graph) edges() (n int) {
	for _, to := range g {
		n += len(to)
	}
	return n
}

func (g graph) print(w io.Writer) {
	for _, from := range slices.Sorted(maps.Keys(g)) {
		fmt.Fprintf(w, "%s: %s\n", from, strings.Join(slices.Sorted(maps.Keys(g[from])), " "))
	}
}

// circles returns the sets of files that all depend on each other, the largest
// first: the strongly connected components of more than one file.
func (g graph) circles() (circles [][]string) {
	reach := map[string]map[string]bool{}
	for from := range g {
		reach[from] = g.reachable(from)
	}
	seen := map[string]bool{}
	for _, a := range slices.Sorted(maps.Keys(g)) {
		if seen[a] || !reach[a][a] {
			continue
		}
		var circle []string
		for _, b := range slices.Sorted(maps.Keys(reach[a])) {
			if reach[b][a] {
				circle = append(circle, b)
				seen[b] = true
			}
		}
		circles = append(circles, circle)
	}
	slices.SortStableFunc(circles, func(a, b []string) int { return len(b) - len(a) })
	return circles
}

// reachable returns all files that a file depends on, in however many steps.
func (g graph) reachable(from string) map[string]bool {
	reached := map[string]bool{}
	todo := []string{from}
	for len(todo) > 0 {
		last := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for to := range g[last] {
			if !reached[to] {
				reached[to] = true
				todo = append(todo, to)
			}
		}
	}
	return reached
}
