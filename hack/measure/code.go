package main

import (
	"fmt"
	"go/ast"
	"go/types"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"berth/hack/product"
)

// functions prints how long functions are, in lines from the name to the closing brace, and how many parameters they
// have.
func functions(w io.Writer, p *product.Program) {
	var sizes []int
	long, wide := map[string]int{}, map[string]int{}
	widest := 0
	for _, u := range p.Packages {
		for _, f := range u.Written() {
			for _, d := range f.AST.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil {
					continue
				}
				name := u.Path + "/" + f.Name + " " + fn.Name.Name
				n := p.Fset.Position(fn.End()).Line - p.Fset.Position(fn.Pos()).Line + 1
				sizes = append(sizes, n)
				if n > 60 {
					long[name] = n
				}
				params := fn.Type.Params.NumFields()
				widest = max(widest, params)
				if params > 6 {
					wide[name] = params
				}
			}
		}
	}
	slices.Sort(sizes)
	at := func(percent int) int { return sizes[min(len(sizes)*percent/100, len(sizes)-1)] }
	fmt.Fprintf(w, "functions: %d; lines p50/p95/p99/max: %d/%d/%d/%d; most parameters: %d\n",
		len(sizes), at(50), at(95), at(99), at(100), widest)
	table(w, "functions of more than 60 lines", long, 0)
	table(w, "functions with more than 6 parameters", wide, 0)
}

// manyMethods is where the table of types begins.
const manyMethods = 15

// typesTable prints the types with many methods, and the structs that only embed a pointer of their own package.
func typesTable(w io.Writer, p *product.Program) {
	many, shells := map[string]int{}, map[string]int{}
	for _, u := range p.Packages {
		for _, n := range u.Named() {
			if types.IsInterface(n) {
				continue
			}
			name := u.Path + "." + n.Obj().Name()
			many[name] = product.Methods(n)
			if product.Shell(n) {
				shells[name] = product.Methods(n)
			}
		}
	}
	table(w, fmt.Sprintf("types with at least %d methods, promoted ones counted", manyMethods), many, manyMethods)
	table(w, fmt.Sprintf("shells, struct{ *T }, and their methods: %d", len(shells)), shells, 0)
}

// chains prints how often three and more fields are gone through in one expression (a.b.c.d), by package, and the
// pieces of such chains that are most frequent.
func chains(w io.Writer, p *product.Program) {
	byPackage, pieces, total := map[string]int{}, map[string]int{}, 0
	for _, u := range p.Packages {
		for _, f := range u.Written() {
			ast.Inspect(f.AST, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				path := chain(u, s)
				if len(path) >= 3 {
					total++
					byPackage[u.Path]++
					pieces[u.Path+" ."+strings.Join(path[:2], ".")+"."]++
				}
				return false
			})
		}
	}
	table(w, fmt.Sprintf("chains of at least 3 selectors: %d", total), byPackage, 1)
	table(w, "how such chains begin, behind their variable, if at least 8 begin so", pieces, 8)
}

// chain are the selectors of a.b.c, b and c; the name of a package in front is none.
func chain(u *product.Package, s *ast.SelectorExpr) (path []string) {
	for {
		path = append(path, s.Sel.Name)
		switch x := s.X.(type) {
		case *ast.SelectorExpr:
			s = x
			continue
		case *ast.Ident:
			if _, isPackage := u.Info.Uses[x].(*types.PkgName); isPackage {
				path = path[:len(path)-1]
			}
		}
		slices.Reverse(path)
		return path
	}
}

// lines prints how many lines there are, and the packages that have wide ones.
func lines(w io.Writer, p *product.Program) {
	wide, total, most, largest := map[string]int{}, 0, 0, ""
	for _, u := range p.Packages {
		for _, f := range u.Written() {
			all := strings.Split(f.Text, "\n")
			total += len(all) - 1
			if len(all)-1 > most {
				most, largest = len(all)-1, u.Path+"/"+f.Name
			}
			for _, line := range all {
				if utf8.RuneCountInString(line) > 120 {
					wide[u.Path]++
				}
			}
		}
	}
	sum := 0
	for _, n := range wide {
		sum += n
	}
	fmt.Fprintf(w, "\nlines: %d in %d packages; largest file: %d, %s\n", total, len(p.Packages), most, largest)
	table(w, fmt.Sprintf("lines of more than 120 characters: %d", sum), wide, 1)
}
