package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"berth/hack/product"
	"berth/test/fixture"
)

// checked is a package of the product with its types.
type checked = *product.Package

// program is the product, type-checked once for all rules that ask about types.
type program struct{ *product.Program }

// file is where something is, from the root of the repository.
func (p program) file(pos token.Pos) string {
	rel, err := filepath.Rel(fixture.Repo(), p.Fset.Position(pos).Filename)
	if err != nil {
		return p.Fset.Position(pos).Filename
	}
	return filepath.ToSlash(rel)
}

var loaded = sync.OnceValues(func() (program, error) {
	p, err := product.Load(fixture.Repo())
	return program{p}, err
})

// eachType calls fn with every type that the product declares, by its package and name.
func (p program) eachType(fn func(name string, c checked, n *types.Named)) {
	for _, c := range p.Packages {
		for _, n := range c.Named() {
			fn(c.Path+"."+n.Obj().Name(), c, n)
		}
	}
}

// none refuses whatever breaks a rule, which is counted by name.
func none(t *testing.T, rule string, found map[string]int) {
	t.Helper()
	for name, n := range found {
		t.Errorf("%s: %d: %s", name, n, rule)
	}
}

// TestTypesStaySmallWithWhatTheyEmbed counts the methods of a type with those that it has by embedding types of Berth.
func TestTypesStaySmallWithWhatTheyEmbed(t *testing.T) {
	p, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	p.eachType(func(name string, c checked, n *types.Named) {
		if types.IsInterface(n) {
			return
		}
		if own := product.Methods(n); own >= mostMethods && largeOnPurpose[name] == "" {
			found[name] = own
		}
	})
	rule := fmt.Sprintf("%d methods are the most, with those of what a type embeds: %s", mostMethods-1, fewerMethods)
	none(t, rule, found)
}

// TestNoShells refuses a struct that holds nothing but a pointer to a type of its own package: it gives methods another
// name and hides nothing.
func TestNoShells(t *testing.T) {
	p, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	p.eachType(func(name string, c checked, n *types.Named) {
		if product.Shell(n) {
			found[name] = 1
		}
	})
	none(t, "a struct that only embeds a pointer of its own package hides nothing: give it state of its own, or make "+
		"functions of its methods",
		found)
}

// TestLocksStayHome wants a lock to be taken in the file of the type that owns it, and nowhere else.
func TestLocksStayHome(t *testing.T) {
	p, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, c := range p.Packages {
		for _, f := range c.Files {
			ast.Inspect(f.AST, func(n ast.Node) bool {
				lock, ok := n.(*ast.SelectorExpr)
				if !ok || !strings.HasSuffix(lock.Sel.Name, "Lock") {
					return true
				}
				field, ok := lock.X.(*ast.SelectorExpr)
				if !ok || !isMutex(c.Info.Types[lock.X].Type) {
					return true
				}
				if of := c.Info.Uses[field.Sel]; of != nil && p.file(of.Pos()) != p.file(lock.Pos()) {
					found[p.file(lock.Pos())+" locks "+field.Sel.Name+" of "+p.file(of.Pos())]++
				}
				return true
			})
		}
	}
	none(t, "a lock is taken in the file of the type that owns it: give that type a method", found)
}

func isMutex(t types.Type) bool {
	if ptr, ok := t.(*types.Pointer); ok {
		t = ptr.Elem()
	}
	n, ok := t.(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == "sync" && strings.HasSuffix(n.Obj().Name(), "Mutex")
}
