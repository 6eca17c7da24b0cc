package main

import (
	"go/types"
)

// standard lists packages outside of the repository whose interfaces require methods.
var standard = []string{
	"encoding", "encoding/gob", "encoding/json", "fmt", "io", "net/http",
}

// unnamed lists methods that the standard library requires by
// interfaces without a name, and methods required by other modules.
var unnamed = []string{
	"Error", "Unwrap", "Is", "CloseIdleConnections", "IsZero",
	"MarshalYAML", "WrapUnary", "WrapStreamingClient", "WrapStreamingHandler", // required by YAML and Connect
}

// foreign adds the standard packages' interfaces.
func (c *counted) foreign(all []*types.Package) {
	for _, p := range all {
		for _, id := range p.Scope().Names() {
			if t, ok := p.Scope().Lookup(id).(*types.TypeName); ok && t.Exported() {
				c.demand(t)
			}
		}
	}
}

// demand adds an interface.
func (c *counted) demand(t *types.TypeName) {
	if i, ok := t.Type().Underlying().(*types.Interface); ok && i.NumMethods() > 0 && i.IsMethodSet() {
		c.interfaces = append(c.interfaces, i)
	}
}

// demanded records the methods required by interfaces, and the results' types.
func (c *counted) demanded() {
	for _, t := range c.named {
		if !types.IsInterface(t) {
			c.demandedOf(t)
		}
	}
	seen := map[string]bool{}
	packages := map[*types.Package]bool{}
	for _, t := range c.named {
		packages[t.Obj().Pkg()] = true
		for m := range t.Methods() {
			if m.Exported() {
				c.results(m.Signature(), seen)
			}
		}
		if s, ok := t.Underlying().(*types.Struct); ok {
			for f := range s.Fields() {
				c.callbacks(f.Type(), seen)
			}
		}
	}
	for p := range packages {
		for _, id := range p.Scope().Names() {
			if f, ok := p.Scope().Lookup(id).(*types.Func); ok && f.Exported() {
				c.results(f.Signature(), seen)
			}
		}
	}
}

// demandedOf records which of a type's methods interfaces require.
func (c *counted) demandedOf(t *types.Named) {
	methods := types.NewMethodSet(types.NewPointer(t))
	for _, i := range c.interfaces {
		if !implements(methods, i) {
			continue
		}
		for m := range i.Methods() {
			c.showMethod(t, m.Name())
		}
	}
	for _, id := range unnamed {
		c.showMethod(t, id)
	}
}

func (c *counted) showMethod(t *types.Named, id string) {
	n := name{pkg: c.short(t.Obj().Pkg().Path()), recv: t.Obj().Name(), id: id}
	if n := c.byKey[n.String()]; n != nil {
		n.demanded = true
		n.show(byDemand)
	}
}

// results records the types returned by a function or passed to a callback.
func (c *counted) results(s *types.Signature, seen map[string]bool) {
	for v := range s.Results().Variables() {
		c.result(v.Type(), seen)
	}
	for v := range s.Params().Variables() {
		c.callbacks(v.Type(), seen)
	}
}

// callbacks records the types of a callback's parameters. It does nothing for other types.
func (c *counted) callbacks(t types.Type, seen map[string]bool) {
	if f, ok := t.Underlying().(*types.Signature); ok {
		for v := range f.Params().Variables() {
			c.result(v.Type(), seen)
		}
	}
}

// result records a result's type, and its exported fields' types.
func (c *counted) result(t types.Type, seen map[string]bool) {
	switch t := t.(type) {
	case *types.Pointer:
		c.result(t.Elem(), seen)
	case *types.Slice:
		c.result(t.Elem(), seen)
	case *types.Array:
		c.result(t.Elem(), seen)
	case *types.Map:
		c.result(t.Elem(), seen)
	case *types.Alias:
		c.resultName(t.Obj())
		c.result(types.Unalias(t), seen)
	case *types.Signature:
		c.results(t, seen)
		for v := range t.Params().Variables() {
			c.result(v.Type(), seen)
		}
	case *types.Named:
		key := c.key(t.Obj())
		if key == "" || seen[key] {
			return
		}
		seen[key] = true
		c.resultName(t.Obj())
		if s, ok := t.Underlying().(*types.Struct); ok {
			for f := range s.Fields() {
				if f.Exported() {
					c.result(f.Type(), seen)
				}
			}
		}
	}
}

func (c *counted) resultName(t *types.TypeName) {
	if n := c.byKey[c.key(t)]; n != nil {
		n.show(byResult)
	}
}

// implements reports whether a method set contains an interface's methods, for some type arguments.
func implements(methods *types.MethodSet, i *types.Interface) bool {
	for m := range i.Methods() {
		has := methods.Lookup(m.Pkg(), m.Name())
		if has == nil || !alike(has.Type(), m.Type()) {
			return false
		}
	}
	return true
}

// alike reports whether two types have the same name and form. A type parameter is like any type.
func alike(a, b types.Type) bool {
	a, b = types.Unalias(a), types.Unalias(b)
	if _, ok := a.(*types.TypeParam); ok {
		return true
	}
	if _, ok := b.(*types.TypeParam); ok {
		return true
	}
	switch a := a.(type) {
	case *types.Signature:
		b, ok := b.(*types.Signature)
		return ok && a.Variadic() == b.Variadic() && tuples(a.Params(), b.Params()) && tuples(a.Results(), b.Results())
	case *types.Pointer:
		b, ok := b.(*types.Pointer)
		return ok && alike(a.Elem(), b.Elem())
	case *types.Slice:
		b, ok := b.(*types.Slice)
		return ok && alike(a.Elem(), b.Elem())
	case *types.Named:
		b, ok := b.(*types.Named)
		return ok && origin(a) == origin(b)
	}
	return types.TypeString(a, nil) == types.TypeString(b, nil)
}

// origin returns a type's name without its type arguments.
func origin(t *types.Named) string {
	if t.Obj().Pkg() == nil {
		return t.Obj().Name()
	}
	return t.Obj().Pkg().Path() + "." + t.Obj().Name()
}

func tuples(a, b *types.Tuple) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.Len() {
		if !alike(a.At(i).Type(), b.At(i).Type()) {
			return false
		}
	}
	return true
}
