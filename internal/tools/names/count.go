package main

import (
	"cmp"
	"go/ast"
	"go/types"
	"path"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/internal/tools/repo"
	"github.com/weir-go/ratelimit/internal/tools/source"
)

// shown is where a name is used outside of its package. If there are several places, the highest value counts.
type shown int

const (
	nowhere   shown = iota
	exempt          // nowhere, but exemptions.txt gives a reason
	byPackage       // in another of the repository's packages
	byResult        // as a result's type
	byDemand        // as a method required by an interface
	byPage          // on a documentation page
	byExample       // in an example or an example program
)

func (s shown) String() string {
	return [...]string{"NOWHERE", "exempt", "package", "result", "interface", "page", "example"}[s]
}

// name is a public name: a function, a type, a method, a constant or a variable.
type name struct {
	pkg, recv, id string // recv is a method's type
	kind          string
	shown         shown
	demanded      bool // whether an interface requires the method
}

// String returns the name as in exemptions.txt, for example redislimit.Limiter.Each.
func (n *name) String() string { return strings.Join([]string{n.pkg, n.within()}, ".") }

func (n *name) within() string {
	if n.recv != "" {
		return n.recv + "." + n.id
	}
	return n.id
}

// show records a use of the name.
func (n *name) show(s shown) { n.shown = max(n.shown, s) }

// figures has one package's figures.
type figures struct {
	path                                    string
	names, demanded, inside, unshown, words int
}

// counted has the repository's names and figures.
type counted struct {
	names    []*name
	byKey    map[string]*name
	packages []figures

	module     string
	dirs       map[string]string // folders by short path
	interfaces []*types.Interface
	named      []*types.Named // the public types
}

// count reads the packages of all modules in root.
func count(root string) (*counted, error) {
	modules, err := repo.Modules(root)
	if err != nil {
		return nil, err
	}
	c := &counted{byKey: map[string]*name{}, module: modules[0].Path(), dirs: map[string]string{}}
	// users do not import from these modules
	modules = slices.DeleteFunc(modules, func(m repo.Module) bool { return m.Dir == "internal/proofs" || m.Dir == "internal/tools" })
	all, tests, foreign, err := load(root, modules)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		c.declared(p)
	}
	for _, p := range all {
		c.used(p)
	}
	for _, p := range tests {
		c.examples(p)
	}
	c.foreign(foreign)
	c.demanded()
	if err := c.pages(root); err != nil {
		return nil, err
	}
	slices.SortFunc(c.names, func(a, b *name) int { return cmp.Compare(a.String(), b.String()) })
	return c, c.figures()
}

// short returns a package's path for display, or "" for a package outside of the repository.
func (c *counted) short(pkg string) string {
	if pkg == c.module {
		return path.Base(c.module)
	}
	rest, ok := strings.CutPrefix(pkg, c.module+"/")
	if !ok {
		return ""
	}
	return rest
}

// public reports whether users can import one of the repository's packages.
func public(short string) bool {
	if short == "" {
		return false
	}
	for _, part := range strings.Split(short, "/") {
		if slices.Contains([]string{"internal", "cmd", "examples"}, part) {
			return false
		}
	}
	return true
}

// add adds a name.
func (c *counted) add(pkg, recv, id, kind string) *name {
	n := &name{pkg: pkg, recv: recv, id: id, kind: kind}
	c.names = append(c.names, n)
	c.byKey[n.String()] = n
	return n
}

// declared adds the public names declared by a package.
func (c *counted) declared(p *source.Package) {
	short := c.short(p.Path)
	scope := p.Types.Scope()
	for _, id := range scope.Names() {
		obj := scope.Lookup(id)
		if t, ok := obj.(*types.TypeName); ok && obj.Exported() {
			c.demand(t)
		}
		if !obj.Exported() || !public(short) || p.Name == "main" {
			continue
		}
		c.dirs[short] = p.Dir
		switch obj := obj.(type) {
		case *types.Func:
			c.add(short, "", id, "func")
		case *types.Const:
			c.add(short, "", id, "const")
		case *types.Var:
			c.add(short, "", id, "var")
		case *types.TypeName:
			c.add(short, "", id, "type")
			t, ok := obj.Type().(*types.Named)
			if !ok || obj.IsAlias() {
				continue
			}
			c.named = append(c.named, t)
			for m := range t.Methods() {
				if m.Exported() {
					c.add(short, id, m.Name(), "method")
				}
			}
		}
	}
}

// used records the names used by a package's files.
func (c *counted) used(p *source.Package) {
	short, how := c.short(p.Path), byPackage
	if strings.HasPrefix(short, "examples/") {
		how = byExample
	}
	for _, file := range p.Files {
		c.uses(p, file, short, how)
	}
}

// examples records the names used by the examples in a package's tests.
func (c *counted) examples(p *source.Package) {
	for _, file := range p.Files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && isExample(f) || isWhole(file) {
				c.uses(p, d, "", byExample)
			}
		}
	}
}

// isWhole reports whether a file consists of an example and its declarations.
func isWhole(file *ast.File) bool {
	examples := 0
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			if strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Benchmark") || strings.HasPrefix(f.Name.Name, "Fuzz") {
				return false
			}
			if isExample(f) {
				examples++
			}
		}
	}
	return examples > 0
}

// uses records the names below a node, except the names in package but.
func (c *counted) uses(p *source.Package, under ast.Node, but string, how shown) {
	ast.Inspect(under, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if n := c.byKey[c.key(p.Info.Uses[id])]; n != nil && n.pkg != but {
				n.show(how)
			}
		}
		return true
	})
}

// key returns an object's name, or "" if the object is not one of the repository's public names.
func (c *counted) key(obj types.Object) string {
	if obj == nil || obj.Pkg() == nil || !obj.Exported() {
		return ""
	}
	n := name{pkg: c.short(obj.Pkg().Path()), id: obj.Name()}
	if f, ok := obj.(*types.Func); ok {
		if recv := f.Signature().Recv(); recv != nil {
			t := recv.Type()
			if pointer, ok := t.(*types.Pointer); ok {
				t = pointer.Elem()
			}
			named, ok := t.(*types.Named)
			if !ok {
				return ""
			}
			n.recv = named.Obj().Name()
		}
	} else if obj.Parent() != obj.Pkg().Scope() {
		return ""
	}
	return n.String()
}

// figures computes each package's figures.
func (c *counted) figures() error {
	for short, dir := range c.dirs {
		f := figures{path: short}
		text, err := repo.Run(dir, nil, "go", "doc", "-all", ".")
		if err != nil {
			return err
		}
		f.words = len(strings.Fields(text))
		c.packages = append(c.packages, f)
	}
	slices.SortFunc(c.packages, func(a, b figures) int { return cmp.Compare(a.path, b.path) })
	c.sum()
	return nil
}

// sum counts each package's names.
func (c *counted) sum() {
	for i := range c.packages {
		f := &c.packages[i]
		f.names, f.demanded, f.inside, f.unshown = 0, 0, 0, 0
		for _, n := range c.names {
			if n.pkg != f.path {
				continue
			}
			f.names++
			if n.demanded {
				f.demanded++
			}
			switch n.shown {
			case byPackage:
				f.inside++
			case nowhere:
				f.unshown++
			}
		}
	}
}

// total returns all packages' figures.
func (c *counted) total() figures {
	all := figures{path: "all"}
	for _, f := range c.packages {
		all.names += f.names
		all.demanded += f.demanded
		all.inside += f.inside
		all.unshown += f.unshown
		all.words += f.words
	}
	return all
}
