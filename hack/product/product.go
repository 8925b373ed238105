// Package product loads the program that this repository is, with its types, for rules and measures that ask about
// them.
package product

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
)

// Module is the path with which the imports of the product begin.
const Module = "berth/"

// Program is the product: what is below internal/ and cmd/, without tests.
type Program struct {
	Fset     *token.FileSet
	Packages []*Package
}

// Package is one of its packages.
type Package struct {
	Path  string // from the root of the repository
	Files []*File
	Types *types.Package
	Info  *types.Info
}

// File is one file of a package.
type File struct {
	Name string
	Text string
	AST  *ast.File // with its comments
}

// Written are the files that people have written: those that a program has generated are left out.
func (c *Package) Written() (files []*File) {
	for _, f := range c.Files {
		if !ast.IsGenerated(f.AST) {
			files = append(files, f)
		}
	}
	return files
}

// listed is a package as `go list` tells of it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// Load has the compiler list the packages below root, with the export data of all that they import, and checks the
// types of each from its source.
func Load(root string) (*Program, error) {
	exports, own, err := list(root)
	if err != nil {
		return nil, err
	}
	p := &Program{Fset: token.NewFileSet()}
	from := importer.ForCompiler(p.Fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	for _, l := range own {
		c := &Package{Path: strings.TrimPrefix(l.ImportPath, Module)}
		if err := c.read(p.Fset, from, l); err != nil {
			return nil, err
		}
		p.Packages = append(p.Packages, c)
	}
	return p, nil
}

// list returns where the export data of each package is, and those packages that are the product's own.
func list(root string) (exports map[string]string, own []listed, err error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Dir,GoFiles,Export", "./internal/...",
		"./cmd/...")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list: %w: %s", err, errs.String())
	}
	exports = map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		err := d.Decode(&l)
		if errors.Is(err, io.EOF) {
			return exports, own, nil
		}
		if err != nil {
			return nil, nil, err
		}
		exports[l.ImportPath] = l.Export
		if strings.HasPrefix(l.ImportPath, Module) {
			own = append(own, l)
		}
	}
}

// read parses and checks the files of the package.
func (c *Package) read(fset *token.FileSet, from types.Importer, l listed) error {
	c.Info = &types.Info{
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{},
		Uses: map[*ast.Ident]types.Object{},
	}
	var parsed []*ast.File
	for _, name := range l.GoFiles {
		path := filepath.Join(l.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		parsed = append(parsed, f)
		c.Files = append(c.Files, &File{name, string(text), f})
	}
	var err error
	c.Types, err = (&types.Config{Importer: from}).Check(l.ImportPath, fset, parsed, c.Info)
	return err
}

// Named are the types that the package declares.
func (c *Package) Named() (all []*types.Named) {
	for _, name := range c.Types.Scope().Names() {
		if t, ok := c.Types.Scope().Lookup(name).(*types.TypeName); ok && !t.IsAlias() {
			if n, ok := t.Type().(*types.Named); ok {
				all = append(all, n)
			}
		}
	}
	return all
}

// Methods counts the methods of a type, with those of the product's types that it embeds.
func Methods(n *types.Named) (count int) {
	set := types.NewMethodSet(types.NewPointer(n))
	for i := range set.Len() {
		if pkg := set.At(i).Obj().Pkg(); pkg != nil && strings.HasPrefix(pkg.Path(), Module) {
			count++
		}
	}
	return count
}

// Shell says whether a type is a struct of one embedded pointer to a type of its own package.
func Shell(n *types.Named) bool {
	s, ok := n.Underlying().(*types.Struct)
	if !ok || s.NumFields() != 1 || !s.Field(0).Embedded() {
		return false
	}
	ptr, ok := s.Field(0).Type().(*types.Pointer)
	if !ok {
		return false
	}
	to, ok := ptr.Elem().(*types.Named)
	return ok && to.Obj().Pkg() == n.Obj().Pkg()
}

// Receiver is the name of the type that a method has, from the type of its receiver.
func Receiver(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return Receiver(x.X)
	case *ast.IndexExpr:
		return Receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return "?"
}
