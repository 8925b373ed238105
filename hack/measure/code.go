package main

import (
	"fmt"
	"go/ast"
	"go/types"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// functions prints how long functions are, in lines from the name to the closing brace, and how many parameters they
// have.
func functions(w io.Writer, p *program) {
	var sizes []int
	long, wide := map[string]int{}, map[string]int{}
	widest := 0
	for _, u := range p.packages {
		for _, f := range u.files {
			for _, d := range f.ast.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil {
					continue
				}
				name := u.path + "/" + f.name + " " + fn.Name.Name
				n := p.fset.Position(fn.End()).Line - p.fset.Position(fn.Pos()).Line + 1
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

// typesOf are the types that a package declares, without interfaces.
func typesOf(u *unit) (all []*types.Named) {
	for _, name := range u.pkg.Scope().Names() {
		if t, ok := u.pkg.Scope().Lookup(name).(*types.TypeName); ok && !t.IsAlias() {
			if n, ok := t.Type().(*types.Named); ok && !types.IsInterface(n) {
				all = append(all, n)
			}
		}
	}
	return all
}

// methods counts the methods of a type, with those of Berth's types that it embeds.
func methods(n *types.Named) (count int) {
	set := types.NewMethodSet(types.NewPointer(n))
	for i := range set.Len() {
		if pkg := set.At(i).Obj().Pkg(); pkg != nil && strings.HasPrefix(pkg.Path(), module) {
			count++
		}
	}
	return count
}

// shell says whether a type is a struct of one embedded pointer to a type of its own package.
func shell(u *unit, n *types.Named) bool {
	s, ok := n.Underlying().(*types.Struct)
	if !ok || s.NumFields() != 1 || !s.Field(0).Embedded() {
		return false
	}
	ptr, ok := s.Field(0).Type().(*types.Pointer)
	if !ok {
		return false
	}
	to, ok := ptr.Elem().(*types.Named)
	return ok && to.Obj().Pkg() == u.pkg
}

// manyMethods is where the table of types begins.
const manyMethods = 15

// typesTable prints the types with many methods, and the structs that only embed a pointer of their own package.
func typesTable(w io.Writer, p *program) {
	many, shells := map[string]int{}, map[string]int{}
	for _, u := range p.packages {
		for _, n := range typesOf(u) {
			name := u.path + "." + n.Obj().Name()
			many[name] = methods(n)
			if shell(u, n) {
				shells[name] = methods(n)
			}
		}
	}
	table(w, fmt.Sprintf("types with at least %d methods, promoted ones counted", manyMethods), many, manyMethods)
	table(w, fmt.Sprintf("shells, struct{ *T }, and their methods: %d", len(shells)), shells, 0)
}

// chains prints how often three and more fields are gone through in one expression (a.b.c.d), by package, and the
// pieces of such chains that are most frequent.
func chains(w io.Writer, p *program) {
	byPackage, pieces, total := map[string]int{}, map[string]int{}, 0
	for _, u := range p.packages {
		for _, f := range u.files {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				path := chain(u, s)
				if len(path) >= 3 {
					total++
					byPackage[u.path]++
					pieces[u.path+" ."+strings.Join(path[:2], ".")+"."]++
				}
				return false
			})
		}
	}
	table(w, fmt.Sprintf("chains of at least 3 selectors: %d", total), byPackage, 1)
	table(w, "how such chains begin, behind their variable", pieces, 20)
}

// chain are the selectors of a.b.c, b and c; the name of a package in front is none.
func chain(u *unit, s *ast.SelectorExpr) (path []string) {
	for {
		path = append(path, s.Sel.Name)
		switch x := s.X.(type) {
		case *ast.SelectorExpr:
			s = x
			continue
		case *ast.Ident:
			if _, isPackage := u.info.Uses[x].(*types.PkgName); isPackage {
				path = path[:len(path)-1]
			}
		}
		slices.Reverse(path)
		return path
	}
}

// lines prints how many lines there are, and the packages that have wide ones.
func lines(w io.Writer, p *program) {
	wide, total, most, largest := map[string]int{}, 0, 0, ""
	for _, u := range p.packages {
		for _, f := range u.files {
			all := strings.Split(f.text, "\n")
			total += len(all) - 1
			if len(all)-1 > most {
				most, largest = len(all)-1, u.path+"/"+f.name
			}
			for _, line := range all {
				if utf8.RuneCountInString(line) > 120 {
					wide[u.path]++
				}
			}
		}
	}
	sum := 0
	for _, n := range wide {
		sum += n
	}
	fmt.Fprintf(w, "\nlines: %d in %d packages; largest file: %d, %s\n", total, len(p.packages), most, largest)
	table(w, fmt.Sprintf("lines of more than 120 characters: %d", sum), wide, 1)
}
