package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"berth/hack/product"
)

// site is a place where a mutant may be made: bytes of a file, and what takes their place.
type site struct {
	pkg         *product.Package
	file        *product.File
	function    string // Receiver.Name, or Name
	kind        string
	ordinal     int // among the sites of this kind in the function, from 1
	begin, end  int
	replacement string
}

// text is what is changed, in one line.
func (s site) text() string {
	return oneLine(s.file.Text[s.begin:s.end]) + " -> " + cmp.Or(oneLine(s.replacement), "nothing")
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// mutated is the file with the change.
func (s site) mutated() []byte {
	return []byte(s.file.Text[:s.begin] + s.replacement + s.file.Text[s.end:])
}

// sites are all places of a package.
func sites(p *product.Program, pkg *product.Package) []site {
	var all []site
	for _, f := range pkg.Written() {
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			w := &walker{fset: p.Fset, pkg: pkg, file: f, function: functionName(fn), counts: map[string]int{}}
			ast.Inspect(fn.Body, w.visit)
			all = append(all, w.found...)
		}
	}
	return all
}

// functionName is the name of a function with the type of its receiver.
func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	return product.Receiver(fn.Recv.List[0].Type) + "." + fn.Name.Name
}

// walker finds the sites of one function.
type walker struct {
	fset     *token.FileSet
	pkg      *product.Package
	file     *product.File
	function string
	counts   map[string]int
	found    []site
}

func (w *walker) offset(pos token.Pos) int { return w.fset.Position(pos).Offset }

func (w *walker) source(n ast.Node) string { return w.file.Text[w.offset(n.Pos()):w.offset(n.End())] }

func (w *walker) add(kind string, begin, end token.Pos, replacement string) {
	w.counts[kind]++
	w.found = append(w.found, site{
		w.pkg, w.file, w.function, kind, w.counts[kind], w.offset(begin), w.offset(end), replacement,
	})
}

// compared, joined and summed are the operators that take each other's place.
var (
	compared = map[token.Token]token.Token{
		token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ,
		token.GEQ: token.GTR,
	}
	joined = map[token.Token]token.Token{token.LAND: token.LOR, token.LOR: token.LAND}
	summed = map[token.Token]token.Token{token.ADD: token.SUB, token.SUB: token.ADD}
)

func (w *walker) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		w.operator("compare", compared, n)
		w.operator("logic", joined, n)
		w.operator("arithmetic", summed, n)
	case *ast.IfStmt:
		if b, ok := n.Cond.(*ast.BinaryExpr); !ok || compared[b.Op] == token.ILLEGAL {
			w.add("negate", n.Cond.Pos(), n.Cond.End(), "!("+w.source(n.Cond)+")")
		}
	case *ast.ReturnStmt:
		w.returned(n)
	case *ast.BlockStmt:
		w.statements(n.List)
	case *ast.CaseClause:
		w.statements(n.Body)
	case *ast.CommClause:
		w.statements(n.Body)
	}
	return true
}

func (w *walker) operator(kind string, others map[token.Token]token.Token, n *ast.BinaryExpr) {
	other := others[n.Op]
	if other == token.ILLEGAL {
		return
	}
	if kind == "arithmetic" {
		if basic, ok := w.pkg.Info.Types[n].Type.Underlying().(*types.Basic); !ok || basic.Info()&types.IsNumeric == 0 {
			return
		}
	}
	w.add(kind, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other.String())
}

// returned changes what a function returns: no error in place of one, the other one of true and false.
func (w *walker) returned(n *ast.ReturnStmt) {
	for i, result := range n.Results {
		id, ok := result.(*ast.Ident)
		switch {
		case !ok:
		case id.Name == "true":
			w.add("return", id.Pos(), id.End(), "false")
		case id.Name == "false":
			w.add("return", id.Pos(), id.End(), "true")
		case id.Name == "err" && i == len(n.Results)-1:
			w.add("return", id.Pos(), id.End(), "nil")
		}
	}
}

// statements drops the statements of a list, and swaps neighbours.
func (w *walker) statements(list []ast.Stmt) {
	for i, s := range list {
		if !effect(s) {
			continue
		}
		w.add("drop", s.Pos(), s.End(), "")
		if i+1 < len(list) && effect(list[i+1]) {
			between := w.file.Text[w.offset(s.End()):w.offset(list[i+1].Pos())]
			w.add("swap", s.Pos(), list[i+1].End(), w.source(list[i+1])+between+w.source(s))
		}
	}
}

// effect says whether a statement is a simple one that does something. A line for the log is none: no test wants one.
func effect(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return ok && !logs(call)
	case *ast.DeferStmt, *ast.GoStmt, *ast.IncDecStmt, *ast.SendStmt:
		return true
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE
	}
	return false
}

func logs(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains([]string{"Debug", "Info", "Warn", "Error", "logf"}, s.Sel.Name)
}

// compiles says whether the package has no error with the change. Most changes that have one leave a variable unused.
func (s site) compiles(p *product.Program) bool {
	imports := imported{}
	for _, i := range s.pkg.Types.Imports() {
		imports[i.Path()] = i
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, f := range s.pkg.Files {
		text := []byte(f.Text)
		if f == s.file {
			text = s.mutated()
		}
		parsed, err := parser.ParseFile(fset, f.Name, text, parser.SkipObjectResolution)
		if err != nil {
			return false
		}
		files = append(files, parsed)
	}
	_, err := (&types.Config{Importer: imports}).Check(s.pkg.Types.Path(), fset, files, nil)
	return err == nil
}

// imported are packages by path.
type imported map[string]*types.Package

func (i imported) Import(path string) (*types.Package, error) {
	if pkg := i[path]; pkg != nil {
		return pkg, nil
	}
	return nil, fmt.Errorf("package %s is not loaded", path)
}

// shuffled are sites in an order that depends on nothing but their names.
func shuffled(all []site) []site {
	key := func(s site) []byte {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %d", s.function, s.kind, s.ordinal, seed))
		return sum[:]
	}
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b site) int { return bytes.Compare(key(a), key(b)) })
	return out
}
