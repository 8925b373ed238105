package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/types"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"berth/hack/product"
)

// graph has an arrow from each name to those that it uses.
type graph map[string]map[string]bool

func (g graph) add(from, to string) {
	for _, n := range []string{from, to} {
		if g[n] == nil {
			g[n] = map[string]bool{}
		}
	}
	if from != to {
		g[from][to] = true
	}
}

func (g graph) arrows() (n int) {
	for _, to := range g {
		n += len(to)
	}
	return n
}

// upward counts the arrows that go against the best order of the names that a greedy search finds (Eades, Lin, Smyth):
// those that use nothing are taken to the bottom, those that nothing uses to the top, and of the others the one that is
// used least for what it uses is next at the top. Without circles there is none.
func (g graph) upward() (n int) {
	left := slices.Sorted(maps.Keys(g))
	var top, bottom []string
	degrees := func(name string) (in, out int) {
		for _, other := range left {
			if g[name][other] {
				out++
			}
			if g[other][name] {
				in++
			}
		}
		return in, out
	}
	for len(left) > 0 {
		best, most, sink := 0, -len(g), false
		for i, name := range left {
			in, out := degrees(name)
			if out == 0 {
				best, sink = i, true
				break
			}
			if in == 0 {
				best, most = i, len(g)
			} else if out-in > most {
				best, most = i, out-in
			}
		}
		if sink {
			bottom = append(bottom, left[best])
		} else {
			top = append(top, left[best])
		}
		left = slices.Delete(left, best, best+1)
	}
	slices.Reverse(bottom)
	order := append(top, bottom...)
	for i, name := range order {
		for _, above := range order[:i] {
			if g[name][above] {
				n++
			}
		}
	}
	return n
}

// arrows prints, for each package, between how many of its files there is a use, and how many of these go upward.
func arrows(w io.Writer, p *product.Program) {
	fmt.Fprintf(w, "\narrows between the files of a package: files, arrows, of these upward in the best order found\n")
	type row struct {
		path                  string
		files, arrows, upward int
	}
	var rows []row
	for _, u := range p.Packages {
		g := graph{}
		for _, f := range u.Written() {
			g.add(f.Name, f.Name)
			ast.Inspect(f.AST, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					if of := u.Info.Uses[id]; of != nil && of.Pkg() == u.Types && declaredOutside(of, u.Types) {
						g.add(f.Name, filepath.Base(p.Fset.Position(of.Pos()).Filename))
					}
				}
				return true
			})
		}
		if n := g.arrows(); n > 0 {
			rows = append(rows, row{u.Path, len(u.Written()), n, g.upward()})
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(b.upward-a.upward, b.arrows-a.arrows, cmp.Compare(a.path, b.path))
	})
	for _, r := range rows {
		fmt.Fprintf(w, "%4d %5d %4d  %s\n", r.files, r.arrows, r.upward, r.path)
	}
}

// declaredOutside says whether something is declared outside functions: in the package, or as a field or method.
func declaredOutside(of types.Object, pkg *types.Package) bool {
	if v, ok := of.(*types.Var); ok && v.IsField() {
		return true
	}
	if f, ok := of.(*types.Func); ok && f.Signature().Recv() != nil {
		return true
	}
	return of.Parent() == pkg.Scope()
}

// packages prints what each package offers and imports.
func packages(w io.Writer, p *product.Program) {
	fmt.Fprintf(w, "\npackages: lines, exported symbols, and what of Berth they import\n")
	for _, u := range p.Packages {
		total := 0
		for _, f := range u.Written() {
			total += strings.Count(f.Text, "\n")
		}
		exported := 0
		for _, name := range u.Types.Scope().Names() {
			if ast.IsExported(name) {
				exported++
			}
		}
		var needs []string
		for _, to := range u.Types.Imports() {
			if name, ok := strings.CutPrefix(to.Path(), product.Module); ok {
				needs = append(needs, strings.TrimPrefix(name, "internal/"))
			}
		}
		slices.Sort(needs)
		fmt.Fprintf(w, "%6d %3d  %s: %s\n", total, exported, u.Path, strings.Join(needs, " "))
	}
}
