// Api records all packages' API in a file, with a line for each exported function, type, method, field,
// constant and variable. A change to the API changes that file, so a reviewer sees it. Run it by scripts/api.
//
// The file also lists the internal packages imported by nested
// modules. They are an API between modules at different versions.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/internal/tools/repo"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("api: ")
	dir := flag.String("dir", ".", "folder of the repository")
	write := flag.Bool("write", false, "write the file, instead of comparing it")
	flag.Parse()
	file := filepath.Join(*dir, "internal", "tools", "api", "api.txt")
	lines, err := describe(*dir)
	if err != nil {
		log.Fatal(err)
	}
	if *write {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o666); err != nil {
			log.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	if changes := compare(strings.Split(strings.TrimSpace(string(text)), "\n"), lines); len(changes) > 0 {
		fmt.Println(strings.Join(changes, "\n"))
		log.Fatalf("the API has %d changes: scripts/api -write records them", len(changes))
	}
	fmt.Printf("the API is that of internal/tools/api/api.txt, %d lines\n", len(lines))
}

// compare returns the lines missing in now, each with a minus, and the
// lines missing in before, each with a plus. Both lists must be sorted.
func compare(before, now []string) (changes []string) {
	for _, line := range before {
		if _, found := slices.BinarySearch(now, line); !found {
			changes = append(changes, "- "+line)
		}
	}
	for _, line := range now {
		if _, found := slices.BinarySearch(before, line); !found {
			changes = append(changes, "+ "+line)
		}
	}
	return changes
}

// describe returns the sorted lines for all packages that other modules can import.
func describe(root string) ([]string, error) {
	modules, err := repo.Modules(root)
	if err != nil {
		return nil, err
	}
	packages := make(map[string]*build.Package) // by import path
	between := make(map[string]bool)            // the root's internal packages imported by another module
	for _, m := range modules {
		if !m.Published() {
			continue
		}
		own, err := m.Packages(root, "examples")
		if err != nil {
			return nil, err
		}
		maps.DeleteFunc(own, func(_ string, p *build.Package) bool { return p.IsCommand() })
		maps.Copy(packages, own)
		if m.Dir != "." {
			addImports(between, own, modules[0].Path()+"/internal/")
		}
	}
	var lines []string
	for p, d := range packages {
		if strings.Contains(p+"/", "/internal/") && !between[p] {
			continue
		}
		described, err := ofPackage(p, d)
		if err != nil {
			return nil, err
		}
		lines = append(lines, described...)
	}
	slices.Sort(lines)
	return slices.Compact(lines), nil
}

// addImports adds those imported packages whose paths begin with the prefix.
func addImports(to map[string]bool, packages map[string]*build.Package, prefix string) {
	for _, p := range packages {
		for _, imported := range p.Imports {
			if strings.HasPrefix(imported, prefix) {
				to[imported] = true
			}
		}
	}
}

// ofPackage describes a package's exported names.
func ofPackage(p string, d *build.Package) (lines []string, err error) {
	set := token.NewFileSet()
	for _, name := range append(slices.Clone(d.GoFiles), d.CgoFiles...) {
		file, err := parser.ParseFile(set, filepath.Join(d.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			for _, text := range ofDecl(set, decl) {
				lines = append(lines, p+": "+text)
			}
		}
	}
	return lines, nil
}

func ofDecl(set *token.FileSet, decl ast.Decl) (lines []string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		receiver := ""
		if d.Recv != nil {
			if !ast.IsExported(base(d.Recv.List[0].Type)) {
				return nil
			}
			receiver = "(" + text(set, d.Recv.List[0].Type) + ") "
		}
		if d.Name.IsExported() {
			lines = append(lines, "func "+receiver+d.Name.Name+strings.TrimPrefix(text(set, d.Type), "func"))
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					if name.IsExported() {
						lines = append(lines, strings.TrimSpace(d.Tok.String()+" "+name.Name+" "+text(set, s.Type)))
					}
				}
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					lines = append(lines, ofType(set, s)...)
				}
			}
		}
	}
	return lines
}

// ofType describes a type. It returns one line for its kind, and one for each exported field or interface method.
func ofType(set *token.FileSet, s *ast.TypeSpec) (lines []string) {
	name := "type " + s.Name.Name
	parameters := ""
	if s.TypeParams != nil {
		var list []string
		for _, f := range s.TypeParams.List {
			list = append(list, names(f.Names)+" "+text(set, f.Type))
		}
		parameters = "[" + strings.Join(list, ", ") + "]"
	}
	switch t := s.Type.(type) {
	case *ast.StructType:
		lines = append(lines, name+parameters+" struct")
		for _, f := range t.Fields.List {
			if len(f.Names) == 0 && ast.IsExported(base(f.Type)) {
				lines = append(lines, name+" struct, "+text(set, f.Type))
			}
			for _, field := range f.Names {
				if field.IsExported() {
					lines = append(lines, name+" struct, "+field.Name+" "+text(set, f.Type))
				}
			}
		}
	case *ast.InterfaceType:
		lines = append(lines, name+parameters+" interface")
		for _, f := range t.Methods.List {
			if len(f.Names) == 0 {
				lines = append(lines, name+" interface, "+text(set, f.Type))
			}
			for _, method := range f.Names {
				lines = append(lines, name+" interface, "+method.Name+strings.TrimPrefix(text(set, f.Type), "func"))
			}
		}
	default:
		if s.Assign.IsValid() {
			parameters += " ="
		}
		lines = append(lines, name+parameters+" "+text(set, s.Type))
	}
	return lines
}

func names(all []*ast.Ident) string {
	var list []string
	for _, n := range all {
		list = append(list, n.Name)
	}
	return strings.Join(list, ", ")
}

// base returns a receiver's or an embedded field's type name.
func base(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.StarExpr:
		return base(t.X)
	case *ast.IndexExpr:
		return base(t.X)
	case *ast.IndexListExpr:
		return base(t.X)
	case *ast.SelectorExpr:
		return t.Sel.Name
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// text returns an expression on one line, or "" if there is none.
func text(set *token.FileSet, e ast.Expr) string {
	if e == nil {
		return ""
	}
	var b bytes.Buffer
	if err := printer.Fprint(&b, set, e); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
