package main

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

// program is the product with its types.
type program struct {
	fset     *token.FileSet
	packages []*unit
}

// unit is one package.
type unit struct {
	path  string // without the module
	files []*file
	pkg   *types.Package
	info  *types.Info
}

// file is one file of a package.
type file struct {
	name string
	text string
	ast  *ast.File
}

// module is the path with which the imports of the product begin.
const module = "berth/"

// load lists the packages with the compiler's export data of all that they import, and checks each from its source.
func load(root string) (*program, error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Dir,GoFiles,Export", "./internal/...",
		"./cmd/...")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, errs.String())
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
			return nil, err
		}
		exports[l.ImportPath] = l.Export
		if strings.HasPrefix(l.ImportPath, module) {
			own = append(own, l)
		}
	}
	p := &program{fset: token.NewFileSet()}
	from := importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, l := range own {
		u := &unit{path: strings.TrimPrefix(l.ImportPath, module)}
		if err := u.read(p.fset, from, l.Dir, l.GoFiles); err != nil {
			return nil, err
		}
		p.packages = append(p.packages, u)
	}
	return p, nil
}

// read parses and checks the files of a package. Generated files are checked and not kept.
func (u *unit) read(fset *token.FileSet, from types.Importer, dir string, names []string) error {
	u.info = &types.Info{
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{},
		Uses: map[*ast.Ident]types.Object{},
	}
	var all []*ast.File
	for _, name := range names {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all = append(all, f)
		if !ast.IsGenerated(f) {
			u.files = append(u.files, &file{name, string(text), f})
		}
	}
	var err error
	u.pkg, err = (&types.Config{Importer: from}).Check(module+u.path, fset, all, u.info)
	return err
}
