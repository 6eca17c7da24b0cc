// Platforms checks that all modules' packages and tests compile on other platforms. It
// checks types from source, so it needs no compiled standard library for each platform.
//
//	go -C internal/tools run ./platforms -dir ../.. windows/amd64 darwin/arm64 linux/386
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"golang.org/x/tools/go/packages"

	"github.com/weir-go/ratelimit/internal/tools/repo"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("platforms: ")
	dir := flag.String("dir", ".", "folder of the repository")
	flag.Parse()
	root, err := filepath.Abs(*dir)
	if err != nil {
		log.Fatal(err)
	}
	debug.SetGCPercent(400) // the garbage collector works half as much, and for a short time this needs more memory
	failed := false
	for _, platform := range flag.Args() {
		n, err := check(root, platform, os.Stdout)
		if err != nil {
			log.Fatal(err)
		}
		failed = failed || n > 0
	}
	if failed {
		os.Exit(1)
	}
}

// check checks the types for a platform such as windows/amd64. It prints the errors and returns how many there are.
func check(root, platform string, out io.Writer) (failures int, err error) {
	system, processor, found := strings.Cut(platform, "/")
	if !found {
		return 0, fmt.Errorf("%q is not of the form windows/amd64", platform)
	}
	modules, err := repo.Modules(root)
	if err != nil {
		return 0, err
	}
	checked := 0
	for _, m := range modules {
		dir := filepath.Join(root, filepath.FromSlash(m.Dir))
		all, err := packages.Load(&packages.Config{
			Mode: packages.LoadAllSyntax,
			Dir:  dir,
			Env:  append(os.Environ(), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0", "GOWORK=off"),
			ParseFile: func(set *token.FileSet, name string, text []byte) (*ast.File, error) {
				file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
				if file != nil && !strings.HasPrefix(name, root+string(filepath.Separator)) {
					declarationsOnly(file)
				}
				return file, err
			},
			Tests: true,
		}, "./...")
		if err != nil {
			return failures, fmt.Errorf("%s: %w", dir, err)
		}
		reported := make(map[string]bool) // by text: each package is loaded twice, with its tests and without
		for _, p := range all {
			checked++
			for _, e := range p.Errors {
				// Files from go test use declarations removed by declarationsOnly.
				if text := e.Error(); !reported[text] && !generated(e, root) {
					reported[text] = true
					failures++
					fmt.Fprintf(out, "%s: %s\n", platform, text)
				}
			}
		}
	}
	_, err = fmt.Fprintf(out, "%s: %d packages and tests in %d modules\n", platform, checked, len(modules))
	return failures, err
}

// generated reports whether an error is in a file outside of the repository. It returns false for an error without a file.
func generated(e packages.Error, root string) bool {
	return filepath.IsAbs(e.Pos) && !strings.HasPrefix(e.Pos, root+string(filepath.Separator))
}

// declarationsOnly removes functions' bodies, so that bodies in other modules and in the standard library are not checked.
func declarationsOnly(file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			f.Body = &ast.BlockStmt{Lbrace: f.Body.Lbrace, Rbrace: f.Body.Rbrace}
		}
	}
}
