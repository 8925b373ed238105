package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"berth/test/fixture"
)

// checked is a package of the product with its types.
type checked struct {
	path  string // from the root of the repository
	pkg   *types.Package
	files []*ast.File
	info  *types.Info
}

// program is the product, type-checked once for all rules that ask about types.
type program struct {
	fset     *token.FileSet
	packages []checked
}

// file is where something is, from the root of the repository.
func (p program) file(pos token.Pos) string {
	rel, err := filepath.Rel(fixture.Repo(), p.fset.Position(pos).Filename)
	if err != nil {
		return p.fset.Position(pos).Filename
	}
	return filepath.ToSlash(rel)
}

var product = sync.OnceValues(load)

// load has the compiler list the packages of the product, with the export data of all that they import, and checks the types
// of each from its source.
func load() (program, error) {
	p := program{fset: token.NewFileSet()}
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Dir,GoFiles,Export,Module", "./internal/...", "./cmd/...")
	cmd.Dir = fixture.Repo()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return p, fmt.Errorf("go list: %w: %s", err, errs.String())
	}
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
	}
	exports, own := map[string]string{}, []listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		err := d.Decode(&l)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return p, err
		}
		exports[l.ImportPath] = l.Export
		if strings.HasPrefix(l.ImportPath, "berth/") {
			own = append(own, l)
		}
	}
	from := importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, l := range own {
		c := checked{path: strings.TrimPrefix(l.ImportPath, "berth/"), info: &types.Info{
			Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		}}
		for _, name := range l.GoFiles {
			file, err := parser.ParseFile(p.fset, filepath.Join(l.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return p, err
			}
			c.files = append(c.files, file)
		}
		if c.pkg, err = (&types.Config{Importer: from}).Check(l.ImportPath, p.fset, c.files, c.info); err != nil {
			return p, err
		}
		p.packages = append(p.packages, c)
	}
	return p, nil
}

// named are the types that a package declares.
func (c checked) named() (all []*types.Named) {
	for _, name := range c.pkg.Scope().Names() {
		if t, ok := c.pkg.Scope().Lookup(name).(*types.TypeName); ok && !t.IsAlias() {
			if n, ok := t.Type().(*types.Named); ok {
				all = append(all, n)
			}
		}
	}
	return all
}

// eachType calls fn with every type that the product declares, by its package and name.
func (p program) eachType(fn func(name string, c checked, n *types.Named)) {
	for _, c := range p.packages {
		for _, n := range c.named() {
			fn(c.path+"."+n.Obj().Name(), c, n)
		}
	}
}

// compare holds what breaks a rule today against what is listed: nothing may come, and what has gone leaves the list.
func compare(t *testing.T, rule string, found, listed map[string]int) {
	t.Helper()
	for name, n := range found {
		switch most, ok := listed[name]; {
		case !ok:
			t.Errorf("%s: %d: %s", name, n, rule)
		case n > most:
			t.Errorf("%s: %d, and it was %d: %s", name, n, most, rule)
		case n < most:
			t.Errorf("%s has become better: it is %d now, put that where %d is listed", name, n, most)
		}
	}
	for name := range listed {
		if _, ok := found[name]; !ok {
			t.Errorf("%s breaks no rule any more: take it from the list (%s)", name, rule)
		}
	}
}

// TestTypesStaySmallWithWhatTheyEmbed counts the methods of a type with those that it has by embedding types of Berth.
func TestTypesStaySmallWithWhatTheyEmbed(t *testing.T) {
	p, err := product()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	p.eachType(func(name string, c checked, n *types.Named) {
		if types.IsInterface(n) {
			return
		}
		set, own := types.NewMethodSet(types.NewPointer(n)), 0
		for i := range set.Len() {
			if pkg := set.At(i).Obj().Pkg(); pkg != nil && strings.HasPrefix(pkg.Path(), "berth/") {
				own++
			}
		}
		if own >= mostMethods && largeOnPurpose[name] == "" {
			found[name] = own
		}
	})
	compare(t, fmt.Sprintf("%d methods are enough, with those of what a type embeds", mostMethods), found, largeByEmbedding)
}

// TestNoShells refuses a struct that holds nothing but a pointer to a type of its own package: it gives methods another
// name and hides nothing.
func TestNoShells(t *testing.T) {
	p, err := product()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	p.eachType(func(name string, c checked, n *types.Named) {
		s, ok := n.Underlying().(*types.Struct)
		if !ok || s.NumFields() != 1 || !s.Field(0).Embedded() {
			return
		}
		if ptr, ok := s.Field(0).Type().(*types.Pointer); ok {
			if to, ok := ptr.Elem().(*types.Named); ok && to.Obj().Pkg() == c.pkg {
				found[name] = 1
			}
		}
	})
	compare(t, "a struct that only embeds a pointer of its own package hides nothing: give it state of its own, or make functions of its methods",
		found, shells)
}

// TestLocksStayHome wants a lock to be taken in the file of the type that owns it, and nowhere else.
func TestLocksStayHome(t *testing.T) {
	p, err := product()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, c := range p.packages {
		for _, f := range c.files {
			ast.Inspect(f, func(n ast.Node) bool {
				lock, ok := n.(*ast.SelectorExpr)
				if !ok || !strings.HasSuffix(lock.Sel.Name, "Lock") {
					return true
				}
				field, ok := lock.X.(*ast.SelectorExpr)
				if !ok || !isMutex(c.info.Types[lock.X].Type) {
					return true
				}
				if of := c.info.Uses[field.Sel]; of != nil && p.file(of.Pos()) != p.file(lock.Pos()) {
					found[p.file(lock.Pos())+" locks "+field.Sel.Name+" of "+p.file(of.Pos())]++
				}
				return true
			})
		}
	}
	compare(t, "a lock is taken in the file of the type that owns it: give that type a method", found, locksAbroad)
}

func isMutex(t types.Type) bool {
	if ptr, ok := t.(*types.Pointer); ok {
		t = ptr.Elem()
	}
	n, ok := t.(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == "sync" && strings.HasSuffix(n.Obj().Name(), "Mutex")
}
